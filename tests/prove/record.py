"""The record of the promises: what has been tried, merged after each promise, so that a stopped trial can go on."""

import hashlib
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

from linnet.storage import read_json_file, write_json_file, write_text_file
from tests.prove.page import render_reliability
from tests.prove.promises import ordered_promises

ROOT = Path(__file__).parent.parent.parent
RECORD = ROOT / "docs/reliability.json"
PAGE = ROOT / "docs/reliability.md"
CODE = ("linnet", "recipes", "tests/prove", "tests/storage")  # a change in them begins all trials again


class Record:
    """The committed record and its page; `whole` says whether all promises are tried, in one go."""

    def __init__(self, whole: bool) -> None:
        self.content: dict[str, Any] = read_json_file(RECORD) if RECORD.exists() else {"promises": [], "minutes": None}
        self.whole, self._start = whole, time.perf_counter()
        stopped = self.content.pop("unfinished", {})
        same = whole and stopped.get("code") == code_digest()
        kept = [each["name"] for each in self.content["promises"] if not each["failed"]]
        self.done = [name for name in stopped["names"] if name in kept] if same else []
        self._before = stopped["minutes"] if same else 0.0

    @property
    def minutes(self) -> float:
        """How long all trials of this go have taken so far, also before they were stopped."""
        return round(self._before + (time.perf_counter() - self._start) / 60, 1)

    def expected(self, name: str) -> float:
        """Minutes of a core that a promise took the last time; one if it has not been tried."""
        return max(next((p["cpu_minutes"] for p in self.content["promises"] if p["name"] == name), 1.0), 0.05)

    def add(self, found: dict[str, Any]) -> None:
        """Write the trials of one promise down, and the page."""
        promises = ordered_promises()
        known = {each["name"]: each for each in (*self.content["promises"], found)}
        self.done.append(found["name"])
        self.content |= {
            "promises": [known[each.name] for each in promises if each.name in known],
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[2]:.1f}",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }
        if self.whole:
            missing = {each.name for each in promises} - set(self.done)
            self.content["minutes"] = self.minutes
            self.content.pop("unfinished", None)
            if missing:
                self.content["unfinished"] = {"code": code_digest(), "names": self.done, "minutes": self.minutes}
        write_json_file(RECORD, self.content)
        self.render()

    def render(self) -> None:
        """Write the page."""
        write_text_file(PAGE, render_reliability(self.content, ordered_promises(), PAGE.read_text()))


def code_digest() -> str:
    """A hash of the code that is tried and of the trials, and of torch's version."""
    digest = hashlib.sha256(torch.__version__.encode())
    for place in CODE:
        for path in sorted((ROOT / place).rglob("*")):
            if path.suffix in (".py", ".cpp", ".h", ".toml"):
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()
