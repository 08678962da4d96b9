"""Files that are written whole or not at all, and JSON that says the same again."""

import contextlib
import errno
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from linnet.errors import LinnetError


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write a file: its name shows the old content or all of the new, also after a kill or a power cut."""
    path = Path(path)
    temporary = temporary_name(path)
    with one_line_errors("write", path, temporary):
        write_new(temporary, data)
        temporary.replace(path)
        sync_folder(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """`write_atomic` for text, as UTF-8."""
    write_atomic(path, text.encode())


def write_json(path: str | Path, value: object) -> None:
    """`write_atomic` for JSON with sorted keys; NaN and infinity are refused with the name of their field."""
    write_atomic(path, dump_json(value, Path(path).name))


def dump_json(value: object, name: str) -> bytes:
    """The one JSON form of `value`, which is called `name` if it holds what JSON would not give back."""
    _check_plain(value, name)
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def read_json(path: str | Path) -> Any:
    """The content of a JSON file; a missing or malformed one is a one-line error that names it."""
    with one_line_errors("read", Path(path)):
        data = Path(path).read_bytes()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LinnetError(f"{path} is not valid JSON: {error}") from error


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody else writes to and that `clean` knows."""
    path = path.absolute()  # "." has no name
    return path.with_name(f".linnet-{path.name}-{os.getpid()}-{secrets.token_hex(4)}.tmp")


def beside(folder: Path, ending: str) -> Path:
    """The file next to a folder that has its whole name: runs/a.b and .md give runs/a.b.md."""
    named = folder if folder.name not in ("", "..") else folder.resolve()  # "." has no name
    return named.with_name(f"{named.name}{ending}")


@contextlib.contextmanager
def one_line_errors(verb: str, path: Path, temporary: Path | None = None) -> Iterator[None]:
    """A failure of the system becomes one line that names `path`; whatever fails, `temporary` is removed."""
    try:
        yield
    except BaseException as error:
        if temporary is not None:
            remove(temporary)
        if isinstance(error, OSError):
            raise LinnetError(f"cannot {verb} {path}: {error.strerror or error}") from error
        raise


def clean(folder: str | Path, older_than: float = 0.0) -> None:
    """Remove what killed writers left in `folder`: our temporary names, at least so many seconds old.

    A checkpoint that was set aside for its successor, which never came, gets its name back.
    """
    for path in sorted(Path(folder).glob(".linnet-*.old")):
        final = path.with_name(path.name.removeprefix(".linnet-").removesuffix(".old"))
        if final.exists():
            remove(path)
        else:
            path.rename(final)
    for path in sorted(Path(folder).glob(".linnet-*.tmp")):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime >= older_than:
                remove(path)


def write_new(path: Path, data: bytes) -> None:
    """A new file with this content, on the disk when the call returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """The system may take less than it is given, and takes at most 2 GB."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where its file system has such a call."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or a folder as far as the system allows; never raises."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _check_plain(value: object, name: str) -> None:
    """Refuse what JSON cannot hold or would change: other types, keys that are no strings, NaN, infinity."""
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
