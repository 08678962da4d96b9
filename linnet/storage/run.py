"""A run folder: the lock that keeps a second process out, and the log of metrics."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnet.errors import LinnetError
from linnet.storage.files import (
    LARGEST_JSON,
    clean_temporary_files,
    dump_json_file,
    one_line_file_errors,
    open_regular_file,
    read_hashed_file,
    read_json_file,
    read_regular_file,
    write_file_atomic,
    write_file_bytes,
    write_json_file,
)

OURS = b"process "  # the first bytes of a lock file
LOCK = ".lock"
# All that a run writes, besides reports and analyses.
RUN_FILES = ("config.toml", "environment.json", "metrics.jsonl", "timings.jsonl", "tokenizer.json", LOCK)


class BusyError(LinnetError):
    """Another process is using the folder."""


class RunLock:
    """`with RunLock(folder):` admits one process at a time; the lock ends with its process, even a killed one."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / LOCK

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


def check_run_links(folder: str | Path) -> None:
    """Raise if a part of a run is a symbolic link, or a file where a folder must be, or the reverse.

    What a link leads to can change, and writing replaces the link.
    """
    for name in (*RUN_FILES, "checkpoints", "pretrain"):
        path = Path(folder) / name
        if path.is_symlink():
            raise LinnetError(f"{path} is a symbolic link: the parts of a run must be in its folder")
        if path.exists() and path.is_dir() != (name in ("checkpoints", "pretrain")):
            raise LinnetError(
                f"{path} is {'a' if path.is_dir() else 'not a'} folder: a run has no such part; move it away"
            )


class MetricsLog:
    """A file of JSON lines, one record per line, each with its `step`.

    Append all records of a step, take the `mark`, and call `sync` before the checkpoint of that step is saved. Then a
    run that was killed and resumed leaves the same file as an uninterrupted one (if its records hold no times).
    """

    def __init__(self, path: str | Path, resume_at: int | None = None, mark: Mapping[str, Any] | None = None) -> None:
        """Open a new log; with `resume_at`, the old log, minus torn lines and later records.

        With `mark`, that of the checkpoint that the run resumes from, the old one up to there.
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

    def mark(self) -> dict[str, Any]:
        """The size and the SHA-256 of all records so far."""
        return {"size": self._size, "sha256": self._digest.hexdigest()}

    def sync(self) -> None:
        """Flush all records to disk."""
        with one_line_file_errors("write", self.path):
            os.fsync(self._descriptor)

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


def write_run_environment(folder: str | Path, about: Mapping[str, Any]) -> None:
    """Write `environment.json`: `about`, the SHA-256 of `config.toml` as the run began, and its own SHA-256."""
    path = Path(folder) / "environment.json"
    whole = {**about, "config_sha256": read_hashed_file(Path(folder) / "config.toml")[1]}
    write_json_file(path, {**whole, "sha256": hashlib.sha256(dump_json_file(whole, path.name)).hexdigest()})


def check_run_environment(folder: str | Path) -> dict[str, Any]:
    """The content of `environment.json`; raises if it is damaged. An earlier linnet wrote no SHA-256 into it."""
    path = Path(folder) / "environment.json"
    about = read_json_file(path)
    if not isinstance(about, dict):
        raise LinnetError(f"{path} is damaged: it is not a table")
    said = {key: value for key, value in about.items() if key != "sha256"}
    if "linnet" not in about:
        raise LinnetError(f"{path} is damaged: it does not say which linnet wrote it")
    if "config_sha256" in about or "sha256" in about:
        whole = {**said, "sha256": hashlib.sha256(dump_json_file(said, path.name)).hexdigest()}
        if dump_json_file(whole, path.name) != read_regular_file(path, LARGEST_JSON):
            raise LinnetError(f"{path} is damaged: its SHA-256 is not the one in it")
    return about


def seal_run_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with a checksum of it, for a log that no checkpoint hashes."""
    return {**record, "crc32": zlib.crc32(_line(record))}


def check_run_timings(folder: str | Path, mark: Mapping[str, Any] | None) -> int:
    """The number of records of `timings.jsonl`; raises unless each is whole and every metric up to `mark` has one.

    After the checkpoint with that mark, a killed run may have left a torn line, or metrics without times.
    """
    path = Path(folder) / "timings.jsonl"
    lines = []
    if path.exists():
        with one_line_file_errors("read", path):
            lines = read_hashed_file(path)[0].split(b"\n")[:-1]
    records = read_run_metrics(path)
    sealed = any("crc32" in record for record in records)  # a log of an earlier linnet is not
    whole = [r for r in records if not sealed or seal_run_record({k: r[k] for k in r if k != "crc32"}) == r]
    if len(whole) < len(lines):
        raise LinnetError(f"{path} is damaged: of {len(lines)} lines, {len(whole)} are whole")
    metrics = read_run_metrics(Path(folder) / "metrics.jsonl", mark or {"size": 0})
    wanted, places = ([(r["step"], r.get("split")) for r in some] for some in (metrics, records))
    if places[: len(wanted)] != wanted:
        raise LinnetError(f"{path} is damaged: its {len(places)} records are not those of the metrics")
    return len(records)


def _line(record: Mapping[str, Any]) -> bytes:
    """One record as a line of JSON."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return (json.dumps(plain, allow_nan=False) + "\n").encode()
