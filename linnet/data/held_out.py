"""Which text is held out for validation and test: whole files by the hash of their names, or a part of every file."""

import hashlib
from collections.abc import Sequence
from typing import Protocol, TypeVar

from linnet.errors import InputError

SPLITS = ("train", "valid", "test")
SHARES = (0.90, 0.95)  # where train and valid end
SMALLEST_SHARE = 0.01  # of the bytes; a split by file is not used if it leaves a split with less
FEWEST_FILES = 4  # fewer whole files may not be representative, so a part of every file is held out instead


class _File(Protocol):
    """What the rule knows of a file: a name and a size in bytes."""

    @property
    def name(self) -> str:
        """The name, relative to its folder."""

    @property
    def size(self) -> int:
        """Bytes of text."""


F = TypeVar("F", bound=_File)


def hold_out_files(files: Sequence[F]) -> dict[str, list[F]]:
    """Assign each file by the hash of its name, so that adding one does not move others."""
    splits: dict[str, list[F]] = {split: [] for split in SPLITS}
    for file in files:
        digest = hashlib.sha256(file.name.encode(errors="surrogateescape")).digest()
        u = int.from_bytes(digest[:8], "little") / 2**64
        splits[SPLITS[sum(u >= share for share in SHARES)]].append(file)
    return splits


def held_out_suffices(splits: dict[str, list[F]], files: int) -> bool:
    """Whether each split has at least this many files, and the smallest share of the bytes."""
    sizes = [sum(file.size for file in splits[split]) for split in SPLITS]
    return min(len(splits[split]) for split in SPLITS) >= files and min(sizes) >= SMALLEST_SHARE * sum(sizes)


def hold_out_whole_files(files: Sequence[F], held_out: str) -> dict[str, list[F]] | None:
    """The splits if whole files are held out; None if it is a part of every file, as asked or because files are few."""
    splits = hold_out_files(files)
    if held_out == "files" and not held_out_suffices(splits, 1):
        raise InputError("data.held_out is 'files': there are too few files for that; 'parts' is allowed")
    whole = held_out == "files" or (held_out == "auto" and held_out_suffices(splits, FEWEST_FILES))
    return splits if whole else None
