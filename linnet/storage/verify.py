"""Check every file of a run or of an exported model against its recorded hashes."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from linnet.errors import InputError, LinnetError
from linnet.storage.checkpoint import checkpoint_steps, read_checkpoint
from linnet.storage.files import one_line_file_errors, read_hashed_file, read_json_file, read_regular_file
from linnet.storage.run import (
    LOCK,
    check_run_environment,
    check_run_links,
    check_run_metrics,
    check_run_timings,
    read_run_metrics,
)


class Finding(NamedTuple):
    """One group of files: whether it is intact, and what was found."""

    name: str
    ok: bool
    found: str


Load = Callable[[Path, int | None], object]  # loads a run at a step, or an exported model; raises if it cannot
State = dict[str, Any]


def verify_folder(folder: str | Path, load: Load) -> list[Finding]:
    """Verify a run, including its pretraining, or an exported model: all hashes, and that each model loads."""
    folder = Path(folder)
    if (folder / "config.toml").is_file():
        check_run_links(folder)
        found = list(_run(folder, load))
        if (folder / "pretrain" / "config.toml").is_file():
            found += [part._replace(name=f"pretrain/{part.name}") for part in verify_folder(folder / "pretrain", load)]
        return found
    if (folder / "config.json").is_file():
        return list(_export(folder, load))
    what = "does not exist" if not folder.exists() else "is neither a run (config.toml) nor a model (config.json)"
    raise InputError(f"{folder} {what}")


def verify_checkpoints(folder: Path, load: Load) -> Iterator[tuple[Finding, State | None]]:
    """Each checkpoint of a run, from the first on, with its state if its hashes are right."""
    for step in checkpoint_steps(folder / "checkpoints"):
        path, name = folder / f"checkpoints/step-{step}", f"checkpoints/step-{step}"
        state = None
        try:
            state = read_checkpoint(path).state
            load(folder, step)
        except LinnetError as error:
            yield Finding(name, False, str(error)), state
            continue
        sizes = [file.stat().st_size for file in path.iterdir()]
        yield Finding(name, True, f"{len(sizes)} files, {sum(sizes):,} bytes"), state


def verify_run_logs(folder: Path, states: list[State]) -> Iterator[Finding]:
    """The files of a run besides its checkpoints, which have the given states."""
    marks = [state["metrics"] for state in states if state.get("metrics") is not None]

    def metrics() -> str:
        for mark in marks:
            check_run_metrics(folder / "metrics.jsonl", mark)
        records = len(read_run_metrics(folder / "metrics.jsonl"))
        return f"{records} records" + ("" if marks else ", without a SHA-256 in any checkpoint")

    def environment() -> str:
        about = check_run_environment(folder)
        data = [state["data"] for state in states if state.get("data") is not None]
        if any(each != about.get("data") for each in data):
            raise LinnetError(f"{folder / 'environment.json'} is of other data than the checkpoints")
        config, edited = folder / "config.toml", ""
        if config.is_file():
            with one_line_file_errors("read", config):
                found = read_hashed_file(config)[1]
            if about.get("config_sha256") not in (None, found):
                edited = "; config.toml has been edited since the run began"
        return f"linnet {about['linnet']}{edited}"

    yield _finding("metrics.jsonl", metrics)
    newest = max(marks, key=lambda mark: mark["size"], default=None)
    yield _finding("timings.jsonl", lambda: f"{check_run_timings(folder, newest)} records")
    yield _finding("environment.json", environment)
    yield _finding(LOCK, lambda: _lock(folder / LOCK))
    hashes = {(state.get("data") or {}).get("tokenizer") for state in states} - {None}
    if hashes:
        yield _finding("tokenizer.json", lambda: _tokenizer(folder, hashes))


def _run(folder: Path, load: Load) -> Iterator[Finding]:
    states = []
    for found, state in verify_checkpoints(folder, load):
        yield found
        states += [state] if state is not None else []
    if not checkpoint_steps(folder / "checkpoints"):
        yield Finding("checkpoints", True, "none yet")
    yield from verify_run_logs(folder, states)


def _export(folder: Path, load: Load) -> Iterator[Finding]:
    def model() -> str:
        load(folder, None)
        return f"{(folder / 'model.safetensors').stat().st_size:,} bytes"

    yield _finding("config.json, model.safetensors", model)
    about: Any = {}
    with contextlib.suppress(LinnetError):  # already reported
        about = read_json_file(folder / "config.json")
    wanted = about.get("tokenizer_sha256") if isinstance(about, dict) else None
    if wanted is not None or (folder / "tokenizer.json").exists():
        yield _finding("tokenizer.json", lambda: _tokenizer(folder, {wanted}))


def _tokenizer(folder: Path, hashes: set[Any]) -> str:
    """The size of the tokenizer; raises unless its SHA-256 is the recorded one."""
    path = folder / "tokenizer.json"
    with one_line_file_errors("read", path):
        data, found = read_hashed_file(path)
    if hashes != {found}:
        raise LinnetError(f"{path} is not the tokenizer of this model: its SHA-256 is not the recorded one")
    return f"{len(data):,} bytes"


def _lock(path: Path) -> str:
    """Who used the run last; raises if the file is no lock of linnet, which would keep everybody out."""
    if not path.exists():
        return "none"
    with one_line_file_errors("read", path):
        text = read_regular_file(path, 4096)
    if text and not re.fullmatch(rb"process [0-9]+ on [!-~]+\n", text):
        raise LinnetError(f"{path} is not a lock of linnet: remove it if no process uses the run")
    return text.decode().strip() or "empty"


def _finding(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, check())
    except LinnetError as error:
        return Finding(name, False, str(error))
