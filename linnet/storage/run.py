"""A run folder: the lock that keeps a second process out, and the log of metrics."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnet.errors import LinnetError
from linnet.storage.files import (
    clean_temporary_files,
    one_line_file_errors,
    open_regular_file,
    read_hashed_file,
    write_file_atomic,
    write_file_bytes,
)

OURS = b"process "  # the first bytes of a lock file


class BusyError(LinnetError):
    """Another process is using the folder."""


class RunLock:
    """`with RunLock(folder):` admits one process at a time; the lock ends with its owner, even if that is killed."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / ".lock"

    def __enter__(self) -> RunLock:
        self._descriptor = self._open()
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

    def _open(self) -> int:
        """The descriptor of the lock; raises for a link or a foreign file, which locking would overwrite."""
        try:
            descriptor = open_regular_file(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except OSError as error:
            why = f"{self.path} is a symbolic link" if error.errno == errno.ELOOP else error.strerror
            raise LinnetError(f"cannot lock {self.path.parent}: {why}") from error
        start = os.pread(descriptor, len(OURS), 0)
        if start not in (b"", OURS):
            os.close(descriptor)
            raise LinnetError(f"cannot lock {self.path.parent}: {self.path} is not a lock of linnet")
        return descriptor

    def __exit__(self, *_: object) -> None:
        if self._descriptor in _held:
            _held.remove(self._descriptor)
            os.close(self._descriptor)


_held: set[int] = set()


def _let_go() -> None:
    """Close the locks in a forked child: its copies of the descriptors would keep the lock of a dead parent."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


class MetricsLog:
    """A file of JSON lines, one record per line, each with its `step`.

    Append all records of a step and call `sync` before the checkpoint of that step is saved. Then a run that was
    killed and resumed leaves the same file as an uninterrupted one (if its records hold no times).
    """

    def __init__(self, path: str | Path, resume_at: int | None = None, mark: Mapping[str, Any] | None = None) -> None:
        """Open a new log; with `resume_at`, the old one without torn lines and without records after that step.

        With `mark`, which `sync` returned for the checkpoint that the run resumes from, the old one up to there.
        """
        self.path = Path(path)
        if mark is not None:
            data = _beginning(self.path, mark)
        else:
            kept = [] if resume_at is None else [r for r in read_run_metrics(path) if r["step"] <= resume_at]
            data = b"".join(_line(record) for record in kept)
        write_file_atomic(path, data)
        self._size, self._digest = len(data), hashlib.sha256(data)
        with one_line_file_errors("write", self.path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record; a number that is not finite is logged as null."""
        line = _line(record)
        with one_line_file_errors("write", self.path):
            write_file_bytes(self._descriptor, line)
        self._size += len(line)
        self._digest.update(line)

    def sync(self) -> dict[str, Any]:
        """Flush all records to disk; returns the size and the SHA-256 of the file."""
        with one_line_file_errors("write", self.path):
            os.fsync(self._descriptor)
        return {"size": self._size, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def check_run_metrics(path: str | Path, mark: Mapping[str, Any] | None) -> None:
    """Raise unless the log begins as it did when the checkpoint with this `mark` was saved.

    A checkpoint of an earlier linnet has no mark, so any log passes.
    """
    if mark is not None:
        _beginning(Path(path), mark)


def _beginning(path: Path, mark: Mapping[str, Any]) -> bytes:
    """The first `size` bytes of a log; raises unless their SHA-256 is that of the mark."""
    size, data = mark["size"], b""
    if path.exists() or size:
        with one_line_file_errors("read", path):
            data = bytes(read_hashed_file(path)[0])
    if len(data) < size:
        raise LinnetError(f"{path} is damaged: it has {len(data)} bytes, {size} were written before the checkpoint")
    if hashlib.sha256(data[:size]).hexdigest() != mark["sha256"]:
        raise LinnetError(f"{path} has been changed: its SHA-256 is not the one in the checkpoint; put it back")
    return data[:size]


def clean_finished_run(folder: str | Path) -> str:
    """Remove temporary files that a killed process left in a finished run, unless a process is using the folder.

    A finished run is only read otherwise, so a folder that is not writable is left as it is.
    """
    places = [Path(folder), Path(folder) / "checkpoints"]
    if not any(True for place in places for _ in place.glob(".linnet-*")):
        return ""
    with contextlib.suppress(LinnetError), RunLock(folder):
        failures = [clean_temporary_files(place, shared=place == Path(folder)) for place in places]
        return next(filter(None, failures), "")
    return ""


def read_run_metrics(path: str | Path, mark: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The records of a log, in order, up to `mark`, without a torn last line; empty if there is no file."""
    if not Path(path).exists():
        return []
    with one_line_file_errors("read", Path(path)):
        lines = read_hashed_file(path)[0][: None if mark is None else mark["size"]].split(b"\n")
    records = []
    for line in lines[:-1]:  # the text after the last line end is incomplete
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                records.append(record)
    return records


def _line(record: Mapping[str, Any]) -> bytes:
    """One record as a line of JSON."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return (json.dumps(plain, allow_nan=False) + "\n").encode()
