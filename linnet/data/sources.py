"""The source files of a large corpus: found by kind, read once to check and hash them, and cut at safe places."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from linnet.data.corpora import TEXT_SUFFIXES, is_hidden_corpus_file
from linnet.data.source_texts import (
    CUT,
    WINDOW,
    open_parquet_source,
    parquet_source_groups,
    read_source_texts,
    refuse_source_row,
)
from linnet.data.workers import count_worker_cores, work_in_workers
from linnet.errors import InputError, LinnetError
from linnet.storage import dump_json_file, read_json_file, write_json_file

FORMAT = "linnet-sources-1"
JSONL, PARQUET = (".jsonl", ".ndjson"), (".parquet", ".pq")
SUFFIXES = {"parquet": PARQUET, "jsonl": JSONL, "text": tuple(s for s in TEXT_SUFFIXES.split() if s not in JSONL)}
RECENT = 2_000_000_000  # nanoseconds; a file that changed just now may change again without a new time stamp
FEWEST_BYTES = 64 << 20  # of text that are worth a worker process


@dataclass(frozen=True)
class Place:
    """A file or folder that a user named, the key that named it, and how to read it."""

    key: str  # "data.path"
    path: str
    kind: str | None
    field: str
    skip_bad: bool


@dataclass(frozen=True)
class Source:
    """One checked file. `length` counts its bytes, or the rows of Parquet, and `text` the bytes of text in it.

    `fault` says why all of it is skipped.
    """

    path: str
    name: str
    kind: str
    field: str
    stamp: tuple[int, ...]
    size: int
    length: int
    text: int
    documents: int
    sha256: str
    skipped: int = 0  # rows
    first_skipped: str = ""
    fault: str = ""

    def check_stamp(self) -> None:
        """Raise if the file has changed since it was checked."""
        if _stamp(self.path) != self.stamp:
            raise LinnetError(f"{self.path} has changed while it was being read: start again")


def find_source_files(place: Place) -> tuple[str, list[Path], list[tuple[str, str]]]:
    """The kind of a corpus, its files in order, and the other files of the folder, each with the reason."""
    path = Path(place.path)
    if path.is_file():
        kind = place.kind or next((kind for kind, suffixes in SUFFIXES.items() if _has(path, suffixes)), "text")
        return kind, [path], []
    if not path.is_dir():
        what = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise InputError(f"{path} {what}: {place.key} must be a file of text, JSON lines or Parquet, or a folder")
    files = sorted(file for file in path.rglob("*") if not is_hidden_corpus_file(file, path) and file.is_file())
    found = {kind: [file for file in files if _has(file, suffixes)] for kind, suffixes in SUFFIXES.items()}
    if place.kind == "text":
        found["text"] = sorted(found["text"] + found["jsonl"])
    there = {kind: names for kind, names in found.items() if names and place.kind in (None, kind)}
    if len(there) > 1:
        shown = ", ".join(f"{kind}: {names[0].relative_to(path)}" for kind, names in there.items())
        key = place.key.rpartition(".")[0]
        raise InputError(
            f"{place.key}: {path} holds several kinds of files ({shown}): {key}.kind must say which to read"
        )
    if not there:
        allowed = ", ".join(SUFFIXES[place.kind][:3]) if place.kind else ".txt, .md, .jsonl, .parquet"
        raise InputError(f"{path} has no files to read (such as {allowed}): {place.key} must have some")
    ((kind, texts),) = there.items()
    chosen = set(texts)
    others = [file for file in files if file not in chosen]
    passed = [(str(file), f"{file.suffix or 'no suffix'} is not read as {kind}") for file in others]
    return kind, texts, passed


def _has(path: Path, suffixes: tuple[str, ...]) -> bool:
    return path.suffix.lower() in suffixes


def scan_sources(
    place: Place, cache: Path, progress: Callable[[int, int], None], workers: int | None = None
) -> tuple[list[Source], list[tuple[str, str]]]:
    """Check and hash every file; returns the readable ones that hold text, and the others with the reason.

    A record of each file is kept in `cache`, so a file is read again only after it has changed.
    """
    kind, files, passed = find_source_files(place)
    root = Path(place.path) if Path(place.path).is_dir() else Path(place.path).parent
    about = [FORMAT, str(root.absolute()), kind, place.field, place.skip_bad]
    record = cache / f"sources-{hashlib.sha256(repr(about).encode(errors='surrogateescape')).hexdigest()}.json"
    known = _read_records(record)
    jobs = [(str(file), file.relative_to(root).as_posix(), kind, place.field, place.skip_bad) for file in files]
    found = {name: known[name] for path, name, *_ in jobs if name in known and known[name].stamp == _stamp(path)}
    jobs = [job for job in jobs if job[1] not in found]
    total = sum(Path(job[0]).stat().st_size for job in jobs)
    workers = workers or (count_worker_cores() if total >= FEWEST_BYTES else 1)
    done = 0
    for source in work_in_workers(scan_source, jobs, workers):
        found[source.name] = source
        done += source.size
        progress(done, total)
    if jobs:
        _write_records(record, found)
    sources = [found[file.relative_to(root).as_posix()] for file in files]
    passed += [(source.path, source.fault) for source in sources if source.fault]
    passed += [(source.path, _rows(source)) for source in sources if source.skipped]
    passed += [(source.path, "it is empty") for source in sources if not (source.documents or source.fault)]
    good = [source for source in sources if source.documents]
    if not good:
        raise InputError(f"{place.path} is empty: there is no text to learn from ({place.key})")
    return good, passed


def _rows(source: Source) -> str:
    return f"{source.skipped:,} rows, the first is {source.first_skipped}"


def scan_source(job: tuple[str, str, str, str, bool]) -> Source:
    """Check and hash one file."""
    path, name, kind, field, skip_bad = job
    stamp = _stamp(path)
    skipped: list[str] = []

    def skip(where: str, why: str) -> None:
        if not skip_bad:
            refuse_source_row(path)(where, f"{why}: data.skip_bad=true skips such rows")
        skipped.append("" if skipped else f"{where}: {why}")

    fault, documents, length, size, digest = "", 0, stamp[0], 0, ""
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if kind == "parquet":
            length = open_parquet_source(path, field).metadata.num_rows
        blank = True
        for text, ended in read_source_texts(path, kind, field, 0, length, skip):
            blank = blank and not text.strip()
            documents += ended and not blank
            size += len(text.encode())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except InputError as error:
        if not skip_bad or "pyarrow:" in str(error):
            hint = "" if "skip_bad" in str(error) or kind != "text" else ": data.skip_bad=true skips such files"
            raise InputError(f"{error}{hint}") from None
        fault, documents = str(error).removeprefix(path).lstrip(", "), 0
    first = skipped[0] if skipped else ""
    return Source(path, name, kind, field, stamp, stamp[0], length, size, documents, digest, len(skipped), first, fault)


def _stamp(path: str | Path) -> tuple[int, ...]:
    """Size, times and number of a file: they change with its content."""
    try:
        about = Path(path).stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino


def _read_records(record: Path) -> dict[str, Source]:
    """The records of files that were checked before; empty if the file of records is missing or damaged."""
    if not record.exists():
        return {}
    try:
        content = read_json_file(record)
        rows = content["sources"]
        if hashlib.sha256(dump_json_file(rows, "sources")).hexdigest() != content["sha256"]:
            return {}
        return {row["name"]: Source(**{**row, "stamp": tuple(row["stamp"])}) for row in rows}
    except (LinnetError, LookupError, TypeError):
        return {}


def _write_records(record: Path, found: dict[str, Source]) -> None:
    """Record the checked files, except those that changed just now."""
    late = time.time_ns() - RECENT
    rows: list[dict[str, Any]] = [asdict(source) for source in found.values() if max(source.stamp[1:3]) < late]
    if rows:
        record.parent.mkdir(parents=True, exist_ok=True)
        write_json_file(
            record, {"sources": rows, "sha256": hashlib.sha256(dump_json_file(rows, "sources")).hexdigest()}
        )


def cut_source_for_shard(source: Source, near: int, stop: int) -> int | None:
    """The first place from `near` on, before `stop`, where the file can be cut without changing its tokens."""
    if source.kind == "parquet":
        return next((end for end in parquet_source_groups(source.path, source.field) if near <= end < stop), None)
    if source.kind == "jsonl":
        end = _find_line_end(source.path, near, stop)
        return end if end is not None and end < stop else None
    with open(source.path, "rb") as file:
        for start in range(near, stop, WINDOW):
            file.seek(start)
            data = file.read(min(WINDOW + 64, stop - start))  # the next window begins before this one ends
            head = next((i for i in range(4) if data[i : i + 1] and data[i] & 0xC0 != 0x80), 0)
            text = data[head:].decode(errors="ignore")
            cut = CUT.search(text)
            if cut:
                return start + head + len(text[: cut.end()].encode())
    return None


def cut_source_held_out(source: Source, near: int) -> int:
    """Where to cut for the held-out text: at the next end of a line, or of a character if that is far; or at a row."""
    if near in (0, source.length) or source.kind == "parquet":
        return near
    reach = source.length // 40 if source.kind == "text" else source.length  # half of the smallest split
    end = _find_line_end(source.path, near, near + reach)
    if end is not None:
        return end
    if source.kind == "jsonl":
        return source.length
    with open(source.path, "rb") as file:
        file.seek(near)
        return near + next((i for i, byte in enumerate(file.read(4)) if byte & 0xC0 != 0x80), 0)


def _find_line_end(path: str, near: int, stop: int) -> int | None:
    """The place after the first line end from the byte before `near` on."""
    with open(path, "rb") as file:
        file.seek(near - 1)
        for start in range(near - 1, stop, WINDOW):
            data = file.read(min(WINDOW, stop - start))
            found = data.find(b"\n")
            if found >= 0:
                return start + found + 1
    return None
