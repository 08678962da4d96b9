"""Folders of pictures by class: `path/<class>/*.png`, or with splits `path/{train,valid,test}/<class>/*.jpg`.

Without splits, a tenth of each class is for validation and a tenth for the test, by seed. Without `valid`, a tenth of
the training pictures is for validation.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linnet.data.images.decode import check_pillow, decode_picture
from linnet.data.images.pictures import Pictures, PictureSet, shuffled_splits
from linnet.errors import InputError

SUFFIXES = (".png", ".jpg", ".jpeg")
LARGEST = 1 << 33  # bytes of all pictures, unpacked
SHARE = 0.1
Progress = Callable[[int, int], None]
First = tuple[int, Path]


class FolderOptions(NamedTuple):
    """How pictures are read: their size in pixels, "auto", "gray" or "rgb", and the seed of the split."""

    size: int
    color: str = "auto"
    variant: int = 0


def read_folder(path: Path, options: FolderOptions, progress: Progress | None = None) -> tuple[PictureSet, int]:
    """The splits of the pictures in a folder, and the number of other files there, which are not read."""
    check_pillow()
    if not path.is_dir():
        raise InputError(f"{path} is not a folder: data.path names a folder with one folder of pictures per class")
    named = [split for split in ("train", "valid", "test") if (path / split).is_dir()]
    if named and "train" in named and "test" in named:
        roots = {split: path / split for split in named}
    else:
        roots = {"": path}
    classes = _classes(roots[min(roots)] if "" in roots else roots["train"])
    files = {split: _files(root, classes) for split, root in roots.items()}
    total = sum(len(found) for found, _ in files.values())
    if total * options.size**2 * 3 > LARGEST:
        raise InputError(f"{path} has {total:,} pictures: at {options.size} pixels they exceed {LARGEST:,} bytes")
    parts: dict[str, Pictures] = {}
    first: First | None = None
    done = 0
    for split, (found, _) in files.items():
        parts[split], first = _read(found, options, first, lambda n, at=done: progress and progress(at + n, total))
        done += len(found)
    if "" in parts:
        splits = shuffled_splits(parts[""], options.variant, {"valid": SHARE, "test": SHARE})
    elif "valid" in parts:
        splits = parts
    else:
        splits = {**shuffled_splits(parts["train"], options.variant, {"valid": SHARE}), "test": parts["test"]}
    return PictureSet(splits, classes), sum(others for _, others in files.values())


def _classes(root: Path) -> list[str]:
    """The names of the folders in a folder, sorted."""
    found = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not found:
        raise InputError(f"{root} has no folders: it must have one folder of pictures per class")
    if len(found) == 1:
        raise InputError(f"{root} has one class, {found[0]!r}: a classifier needs at least two")
    return found


def _files(root: Path, classes: list[str]) -> tuple[list[tuple[Path, int]], int]:
    """The pictures of a split with their labels, by class and name, and the number of other files."""
    extra = sorted({entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")})
    for name in extra:
        if name not in classes:
            raise InputError(f"{root / name} is a class that the training pictures do not have")
    pictures, others = [], 0
    for label, name in enumerate(classes):
        inside = sorted(entry for entry in (root / name).iterdir()) if (root / name).is_dir() else []
        mine = [entry for entry in inside if entry.suffix.lower() in SUFFIXES]
        others += len(inside) - len(mine)
        if not mine:
            raise InputError(f"{root / name} has no pictures: {', '.join(SUFFIXES)} are read")
        pictures += [(entry, label) for entry in mine]
    return pictures, others


def _read(
    files: list[tuple[Path, int]], options: FolderOptions, first: First | None, progress: Callable[[int], object]
) -> tuple[Pictures, First | None]:
    """The pictures of one split; `first` is the number of channels and the file that decided it."""
    pixels, labels = [], np.array([label for _, label in files], np.int64)
    for number, (file, _) in enumerate(files, 1):
        try:
            data = file.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read {file}: {error.strerror or error}") from None
        picture = decode_picture(data, str(file), options.size, options.color)
        first = first or (len(picture), file)
        if len(picture) != first[0]:
            kinds = {1: "grey", 3: "in color"}
            raise InputError(
                f"{file} is {kinds[len(picture)]}, but {first[1].name} is {kinds[first[0]]}: "
                "data.color=gray or data.color=rgb converts all"
            )
        pixels.append(picture)
        progress(number)
    return Pictures(np.stack(pixels), labels), first
