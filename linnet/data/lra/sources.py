"""Read the files of a public data set from a folder, or directly from the archive as downloaded.

An archive is read as a stream and never unpacked, so nothing in it can be written to disk.
"""

import bz2
import gzip
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from linnet.errors import InputError
from linnet.storage import read_regular_file

LARGEST = 1 << 28  # bytes of one file in an archive; a batch of CIFAR-10 has 31 million
LARGEST_XZ = 1 << 30  # bytes of a table, unpacked; the 25,000 reviews of a split have 33 million
LARGEST_ARCHIVE = 1 << 36  # bytes of an archive, unpacked
LONGEST_ROW = 1 << 26  # bytes
COMPRESSED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
Progress = Callable[[int, int], None]
Wanted = Callable[[PurePosixPath], bool]


class File(NamedTuple):
    """A file: where it is (for messages), its name in the folder or archive, and its content."""

    place: str
    name: PurePosixPath
    data: bytes


def source_folder(name: str, missing: str) -> Path:
    """The folder `name` in LINNET_DATA; if there is none, raises with `missing` as advice."""
    root = os.environ.get("LINNET_DATA")
    place = Path(root) / name if root else None
    if place is None or not place.exists():
        where = f"{place} does not exist" if place is not None else "neither data.path nor LINNET_DATA is set"
        raise InputError(f"{where}: {missing}")
    return place


def read_source_files(path: Path, wanted: Wanted, missing: str, progress: Progress | None = None) -> Iterator[File]:
    """The wanted files of a folder, by name, or of a tar archive, in its order; `missing` is advice for an error."""
    if path.is_dir():
        found = (file for file in path.rglob("*") if wanted(PurePosixPath(file.as_posix())))
        names = sorted(file for file in found if file.is_file() or file.is_symlink())  # a broken link is reported
        for done, file in enumerate(names, 1):
            yield File(str(file), PurePosixPath(file.as_posix()), _read_bytes(file))
            if progress is not None:
                progress(done, len(names))
    elif path.is_file():
        yield from _read_archive(path, wanted, progress)
    else:
        raise InputError(f"{path} does not exist: {missing}")


def _read_archive(path: Path, wanted: Wanted, progress: Progress | None) -> Iterator[File]:
    """The wanted files of an archive; raises if it is truncated or damaged anywhere."""
    try:
        with path.open("rb") as raw, _unpacked(raw) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            total = path.stat().st_size
            for member in archive:
                name = PurePosixPath(member.name)
                if member.offset > LARGEST_ARCHIVE:
                    raise InputError(f"{path} unpacks to more than {LARGEST_ARCHIVE:,} bytes, which is too large")
                if member.size > LARGEST:
                    raise InputError(f"{path}: {name} has {member.size:,} bytes, which is too large")
                content = archive.extractfile(member) if member.isfile() and wanted(name) else None
                if content is not None:
                    yield File(f"{path}: {name}", name, content.read())
                if progress is not None:
                    progress(raw.tell(), total)
            _check_end(archive)
    except InputError:
        raise
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError) as error:
        raise InputError(f"{path} is not a whole tar archive: {error}") from None


def _unpacked(raw: IO[bytes]) -> IO[bytes]:
    """The decompressed file; unlike tarfile's own readers, these check all of it."""
    first = raw.read(6)
    raw.seek(0)
    for magic, opener in COMPRESSED.items():
        if first.startswith(magic):
            return opener(raw)
    return raw


def _check_end(archive: tarfile.TarFile) -> None:
    """Raise if an archive does not end in zeros: tarfile treats a damaged or missing header as the end."""
    file = archive.fileobj
    assert file is not None  # it is open
    whole = file.tell() == archive.offset + tarfile.BLOCKSIZE
    while block := file.read(1 << 16):
        whole = whole and not block.strip(b"\0")
    if not whole:
        raise tarfile.ReadError("it is cut short or damaged")


def _read_bytes(path: Path) -> bytes:
    """The content of a file."""
    try:
        return read_regular_file(path, LARGEST)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def read_source_rows(path: Path, columns: int) -> Iterator[tuple[str, list[bytes]]]:
    """The rows of a tab-separated file without a header, each with its place; .xz is decompressed.

    Only one row is in memory at a time: the 147,086 public pairs of Retrieval are whole papers.
    """
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_ROW + 1), b""), 1):
                if len(line) > LONGEST_ROW:
                    raise InputError(f"{path}, line {number}: it has more than {LONGEST_ROW:,} bytes")
                if path.suffix == ".xz" and file.tell() > LARGEST_XZ:
                    raise InputError(f"{path} unpacks to more than {LARGEST_XZ:,} bytes, which is too large")
                if row := line.removesuffix(b"\n").removesuffix(b"\r"):
                    cells = row.split(b"\t")
                    if len(cells) != columns:
                        raise InputError(f"{path}, line {number}: it has {len(cells)} columns, not {columns}")
                    yield f"{path}, line {number}", cells
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (lzma.LZMAError, EOFError) as error:
        raise InputError(f"{path} is not a whole .xz file: {error}") from None


def read_source_label(cell: bytes, place: str, classes: int) -> int:
    """A label as a number below `classes`."""
    text = cell.decode("ascii", "replace").strip()
    try:
        label = int(float(text))  # the public files of Retrieval write 0.0 and 1.0
        if float(text) != label:
            raise ValueError
    except (ValueError, OverflowError):
        raise InputError(f"{place}: the label is {text[:40]!r}: it must be a number from 0 to {classes - 1}") from None
    if not 0 <= label < classes:
        raise InputError(f"{place}: the label is {label}: it must be 0 to {classes - 1}")
    return label


def require_utf8_source(text: bytes, place: str) -> bytes:
    """The text itself; raises if it is not UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: the byte 0x{text[error.start]:02x} is not UTF-8 text") from None
    return text
