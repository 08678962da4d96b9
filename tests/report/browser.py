"""A real browser for tests: headless Chromium, driven by its DevTools protocol over two pipes."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-dev-shm-usage --remote-debugging-pipe"


def program() -> str | None:
    """The path of Chromium, if it is installed."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page: `open` it, run `script` in it, move the mouse; `requests` are the addresses that it requested."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._buffer = read, write, b""
        self._number, self._session = 0, None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its answer; events that arrive meanwhile are recorded."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has gone away"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])

    def open(self, path: Path, width: int = 1400, height: int = 1000, fragment: str = "") -> None:
        """Show a file, in a window of this size, and wait until it is drawn."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Page.navigate", url="about:blank")
        self.requests.clear()
        self.send("Page.navigate", url=path.absolute().as_uri() + fragment)
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def script(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 60.0) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.script(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)

    def point(self, x: float, y: float) -> None:
        """Move the mouse there."""
        for step in (1, 0):
            self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x - step, y=y)

    def picture(self, path: Path) -> None:
        """A screenshot of the whole page."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start Chromium with its profile in `folder`, and end it."""
    path = program()
    assert path is not None
    from_us, to_us = os.pipe(), os.pipe()
    # Chromium reads commands from descriptor 3 and writes answers to 4.
    command = f'exec "{path}" {FLAGS} --user-data-dir="{folder}" about:blank 3<&{from_us[0]} 4>&{to_us[1]}'
    quiet, pipes = subprocess.DEVNULL, (from_us[0], to_us[1])
    process = subprocess.Popen(
        ["bash", "-c", command], pass_fds=pipes, stdout=quiet, stderr=quiet, start_new_session=True
    )
    os.close(from_us[0])
    os.close(to_us[1])
    try:
        yield Browser(to_us[0], from_us[1])
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its helpers too, which write into the profile
        process.wait()
        os.close(from_us[1])
        os.close(to_us[0])
