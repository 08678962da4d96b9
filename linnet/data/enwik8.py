"""enwik8: the first 100,000,000 bytes of an English Wikipedia dump, usually split into 90, 5 and 5 million."""

import hashlib
import lzma
import os
from pathlib import Path

from linnet.errors import InputError
from linnet.storage import read_regular_file

SIZE, MD5 = 100_000_000, "a1fa5ffddb56f4953e226637dabbb36a"
ENDS = {"train": 90_000_000, "valid": 95_000_000, "test": SIZE}
NAMES = ("enwik8", "enwik8.xz")  # a packed file takes some seconds more to read


def default_enwik8() -> Path:
    """The folder of enwik8 in LINNET_DATA, used if a run names no folder."""
    data = os.environ.get("LINNET_DATA")
    if not data:
        raise InputError("data.path is not set: name the folder of enwik8 or enwik8.xz, or set LINNET_DATA")
    return Path(data) / "enwik8"


def read_enwik8(folder: Path) -> dict[str, bytes]:
    """The bytes of each split; raises if the file is missing, damaged or another one."""
    path = next((folder / name for name in NAMES if (folder / name).is_file()), None)
    if path is None:
        raise InputError(f"{folder / NAMES[0]} is missing: data.path must be a folder of enwik8 or enwik8.xz")
    try:
        data = _unpack(path) if path.suffix == ".xz" else read_regular_file(path, SIZE)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != MD5:
        raise InputError(f"{path} has {len(data):,} bytes with the MD5 {found}: that of enwik8 is {MD5}")
    starts = (0, *ENDS.values())
    return {split: data[start:end] for start, (split, end) in zip(starts, ENDS.items(), strict=False)}


def _unpack(path: Path) -> bytes:
    """The content, and at most one byte more than enwik8 has: a small file can unpack to a huge one."""
    with lzma.open(path) as file:
        return file.read(SIZE + 1)
