"""Check every file of a run or of an exported model against its recorded hashes."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from linnet.errors import InputError, LinnetError
from linnet.storage.checkpoint import FILES, MANIFEST, checkpoint_steps, read_checkpoint
from linnet.storage.files import one_line_file_errors, read_hashed_file, read_json_file
from linnet.storage.run import check_run_metrics, read_run_metrics


class _Finding(NamedTuple):
    """One group of files: whether it is intact, and what was found."""

    name: str
    ok: bool
    found: str


Load = Callable[[Path, int | None], object]  # loads a run at a step, or an exported model; raises if it cannot


def verify_folder(folder: str | Path, load: Load) -> list[_Finding]:
    """Verify a run, including its pretraining, or an exported model: all hashes, and that each model loads."""
    folder = Path(folder)
    if (folder / "config.toml").is_file():
        found = list(_run(folder, load))
        if (folder / "pretrain" / "config.toml").is_file():
            found += [part._replace(name=f"pretrain/{part.name}") for part in verify_folder(folder / "pretrain", load)]
        return found
    if (folder / "config.json").is_file():
        return list(_export(folder, load))
    what = "does not exist" if not folder.exists() else "is neither a run (config.toml) nor a model (config.json)"
    raise InputError(f"{folder} {what}")


def _run(folder: Path, load: Load) -> Iterator[_Finding]:
    states: list[dict[str, Any]] = []

    def checkpoint(step: int) -> str:
        path = folder / f"checkpoints/step-{step}"
        states.append(read_checkpoint(path).state)
        load(folder, step)
        return f"{len(FILES) + 1} files, {sum((path / name).stat().st_size for name in (*FILES, MANIFEST)):,} bytes"

    def metrics() -> str:
        marks = [state["metrics"] for state in states if state.get("metrics") is not None]
        for mark in marks:
            check_run_metrics(folder / "metrics.jsonl", mark)
        records = len(read_run_metrics(folder / "metrics.jsonl"))
        return f"{records} records" + ("" if marks else ", without a SHA-256 in any checkpoint")

    saved = checkpoint_steps(folder / "checkpoints")
    for step in saved:
        yield _finding(f"checkpoints/step-{step}", lambda step=step: checkpoint(step))  # type: ignore[misc]
    if not saved:
        yield _Finding("checkpoints", True, "none yet")
    yield _finding("metrics.jsonl", metrics)
    hashes = {(state.get("data") or {}).get("tokenizer") for state in states} - {None}
    if hashes:
        yield _finding("tokenizer.json", lambda: _tokenizer(folder, hashes))


def _export(folder: Path, load: Load) -> Iterator[_Finding]:
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


def _finding(name: str, check: Callable[[], str]) -> _Finding:
    try:
        return _Finding(name, True, check())
    except LinnetError as error:
        return _Finding(name, False, str(error))
