"""Files that are written atomically and read only if they are regular; JSON that survives a round trip."""

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from linnet.errors import InputError, LinnetError

CHUNK = 1 << 20  # bytes
LARGEST_JSON = 1 << 30  # bytes
LARGEST_TEXT = 1 << 36  # bytes
IDLE = 600.0  # seconds without a change after which a temporary file counts as abandoned
# With the id of the process that writes it, and the machine that it runs on.
TEMPORARY = re.compile(r"\.linnet-.*-(?P<process>[0-9]{1,9})-(?P<machine>[0-9a-f]{8})?[0-9a-f]{8}\.tmp")


def write_file_atomic(path: str | Path, data: bytes) -> None:
    """Write a file atomically: it has the old content or all of the new, even after a kill or a power cut."""
    path = Path(path)
    temporary = temporary_file_name(path)
    with one_line_file_errors("write", path, temporary):
        write_new_file(temporary, [data])
        temporary.replace(path)
        sync_files_of_folder(path.parent)


def write_text_file(path: str | Path, text: str) -> None:
    """`write_file_atomic` for text, as UTF-8; bytes that are not text are escaped."""
    write_file_atomic(path, text.encode(errors="backslashreplace"))


def write_json_file(path: str | Path, value: object) -> None:
    """`write_file_atomic` for JSON with sorted keys; raises for NaN and infinity, naming the field."""
    write_file_atomic(path, dump_json_file(value, Path(path).name))


def dump_json_file(value: object, name: str) -> bytes:
    """The canonical JSON of `value`; an error about something that JSON would change calls it `name`."""
    _check_plain(value, name)
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def read_json_file(path: str | Path) -> Any:
    """The content of a JSON file; an error about a missing or malformed file names it."""
    with one_line_file_errors("read", Path(path)):
        data = read_regular_file(path, LARGEST_JSON)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LinnetError(f"{path} is not valid JSON: {error}") from error


def read_text_file(path: Path) -> str:
    """The content of a UTF-8 text that a user named; an error about another file names it."""
    try:
        return read_regular_file(path, LARGEST_TEXT).decode()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None


def temporary_file_name(path: Path) -> Path:
    """A unique name beside `path` that `clean_temporary_files` recognizes."""
    path = path.absolute()  # "." has no name
    return path.with_name(f".linnet-{path.name}-{os.getpid()}-{_machine()}{secrets.token_hex(4)}.tmp")


@lru_cache(maxsize=1)
def _machine() -> str:
    """A short name of this machine since its start; a container, where ids mean other processes, has its own."""
    parts = [os.uname().nodename]
    with contextlib.suppress(OSError):  # a system without /proc
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(os.stat("/proc/self/ns/pid").st_ino)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:8]


def file_beside(folder: Path, ending: str) -> Path:
    """The file next to a folder, named after it: runs/a.b and .md give runs/a.b.md."""
    named = folder if folder.name not in ("", "..") else folder.resolve()  # "." has no name
    return named.with_name(f"{named.name}{ending}")


@contextlib.contextmanager
def one_line_file_errors(verb: str, path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Turn an OSError into one line that names `path`; after any failure, `temporary` is removed."""
    try:
        yield
    except BaseException as error:
        if temporary is not None:
            remove_file(temporary)
        if isinstance(error, OSError):
            raise LinnetError(f"cannot {verb} {path}: {error.strerror or error}") from error
        raise


def clean_temporary_files(folder: str | Path, older_than: float = 0.0, shared: bool = False) -> str:
    """Remove the temporary files that killed writers left in `folder`.

    A file whose writer ran on this machine and is dead goes at once; another one goes if it is at least `older_than`
    seconds old. In a `shared` folder, which no lock protects, files that a living process may be writing stay. A
    checkpoint that was set aside but never replaced gets its name back. Returns the first failure, or an empty string.
    """
    failures = []
    for path in [] if shared else sorted(Path(folder).glob(".linnet-*.old")):
        final = path.with_name(path.name.removeprefix(".linnet-").removesuffix(".old"))
        if final.exists():
            failures.append(remove_file(path))
        else:
            path.rename(final)
    found = sorted(Path(folder).glob(".linnet-*.tmp"))
    failures += [remove_file(path) for path in found if _abandoned(path, older_than, shared)]
    return next(filter(None, failures), "")


def _abandoned(path: Path, older_than: float, shared: bool) -> bool:
    """Whether the writer of this temporary file is gone."""
    found = TEMPORARY.fullmatch(path.name)
    if found is None:  # not one of our names
        return not shared and _idle(path) >= older_than
    process = int(found["process"])
    living = process != os.getpid() and _is_living(process)
    if found["machine"] == _machine() and process != os.getpid() and not living:
        return True
    if shared and found["machine"] not in (None, _machine()):  # process ids from other machines mean nothing here
        return _idle(path) >= max(older_than, IDLE)
    return not (shared and living) and _idle(path) >= older_than


def _is_living(process: int) -> bool:
    """Whether this machine has a process of that id."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def _idle(path: Path) -> float:
    """Seconds since the last change of a file, or of anything in a folder, which may already be gone."""
    times = []
    for place in (path, *(path.iterdir() if path.is_dir() and not path.is_symlink() else ())):
        with contextlib.suppress(FileNotFoundError):
            times.append(place.lstat().st_mtime)
    return time.time() - max(times, default=0.0)


def open_regular_file(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file; anything else could block or never end, so it raises OSError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


@contextlib.contextmanager
def reading_file(path: str | Path, links: bool = True) -> Iterator[tuple[int, int]]:
    """The descriptor of a regular file, and its size; with `links` False, a symbolic link raises OSError."""
    try:
        descriptor = open_regular_file(path, os.O_RDONLY if links else os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP and not links:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        raise
    try:
        yield descriptor, os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def read_regular_file(path: str | Path, largest: int, links: bool = True) -> bytes:
    """The content of a regular file of at most `largest` bytes; otherwise raises OSError."""
    with reading_file(path, links) as (descriptor, size):
        if size > largest:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {largest:,} are read", str(path))
        return bytes(read_file_bytes(descriptor, size)[0])


def read_hashed_file(path: str | Path) -> tuple[bytearray, str]:
    """The content of a regular file, and the SHA-256 of exactly these bytes."""
    with reading_file(path) as (descriptor, size):
        return read_file_bytes(descriptor, size)


def read_file_bytes(descriptor: int, size: int) -> tuple[bytearray, str]:
    """The first `size` bytes of an open file, and their SHA-256."""
    try:
        data, done, digest = bytearray(size), 0, hashlib.sha256()
    except MemoryError:
        raise OSError(errno.ENOMEM, f"it has {size:,} bytes, and there is no memory for them") from None
    view = memoryview(data)
    while done < size:
        count = os.preadv(descriptor, [view[done : done + CHUNK]], done)
        if count == 0:
            raise OSError(errno.EIO, "it became shorter while it was read")
        digest.update(view[done : done + count])
        done += count
    return data, digest.hexdigest()


def write_new_file(path: Path, parts: Iterable[bytes | memoryview]) -> dict[str, object]:
    """Write a new file from these parts and flush it to disk; returns its size and SHA-256."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    size, digest = 0, hashlib.sha256()
    try:
        for part in parts:
            write_file_bytes(descriptor, part)
            digest.update(part)
            size += len(part)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return {"sha256": digest.hexdigest(), "size": size}


def write_file_bytes(descriptor: int, data: bytes | memoryview) -> None:
    """Write all data: one system call may write less than it is given, and at most 2 GB."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def sync_files_of_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, if its file system supports that."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove_file(path: Path) -> str:
    """Remove a file or a folder; never raises. Returns what could not be removed and why, or an empty string."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        return ""  # another process has removed it
    except OSError as error:
        return f"cannot remove {path}: {error.strerror or error}"
    return ""


def _check_plain(value: object, name: str) -> None:
    """Raise for values that JSON cannot hold or would change: other types, non-string keys, NaN, infinity."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise LinnetError(f"{name}: the key {key!r} is not a string, so JSON would change it")
            _check_plain(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check_plain(item, f"{name}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise LinnetError(f"{name} is {value}: only finite numbers are saved")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise LinnetError(f"{name} is of type {type(value).__name__}: JSON has no such value")
