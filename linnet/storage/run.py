"""A run's folder: the lock that keeps a second process out, and the log of its metrics."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnet.errors import LinnetError
from linnet.storage.files import one_line_errors, write_all, write_atomic


class BusyError(LinnetError):
    """Another process works in the folder."""


class RunLock:
    """`with RunLock(folder):` one process at a time; the lock dies with its owner, however that dies."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / ".lock"

    def __enter__(self) -> RunLock:
        with one_line_errors("lock", self.path.parent):
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        except OSError as error:
            owner = os.pread(self._descriptor, 300, 0).decode(errors="replace").strip() or "another process"
            os.close(self._descriptor)
            if isinstance(error, BlockingIOError):
                raise BusyError(f"cannot lock {self.path.parent}: {owner} is using it") from error
            raise LinnetError(f"cannot lock {self.path.parent}: {error.strerror}") from error
        _held.add(self._descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor in _held:
            _held.remove(self._descriptor)
            os.close(self._descriptor)


_held: set[int] = set()


def _let_go() -> None:
    """A forked child has a copy of the descriptor, with which it would keep the lock of a dead parent."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


class MetricsLog:
    """A file of JSON lines, one record a line, each with its `step`.

    Log all that belongs to a step and call `sync` before the checkpoint of that step is saved: then a run
    that was killed and resumed leaves the same file as one that was not (if its records hold no times).
    """

    def __init__(self, path: str | Path, resume_at: int | None = None) -> None:
        """A new log; with `resume_at`, the old one without torn lines and without records after that step."""
        self.path = Path(path)
        kept = [] if resume_at is None else [r for r in read_metrics(path) if r["step"] <= resume_at]
        write_atomic(path, b"".join(_line(record) for record in kept))
        with one_line_errors("write", self.path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record; a number that is not finite is logged as null."""
        with one_line_errors("write", self.path):
            write_all(self._descriptor, _line(record))

    def sync(self) -> None:
        """Put all records on the disk."""
        with one_line_errors("write", self.path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Give the file back to the system."""
        os.close(self._descriptor)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The records of a log, in order; none if there is no file, and no line that a kill has torn."""
    if not Path(path).exists():
        return []
    with one_line_errors("read", Path(path)):
        lines = Path(path).read_bytes().split(b"\n")
    records = []
    for line in lines[:-1]:  # what follows the last end of line was never finished
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                records.append(record)
    return records


def _line(record: Mapping[str, Any]) -> bytes:
    """One record as a line of JSON."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return (json.dumps(plain, allow_nan=False) + "\n").encode()
