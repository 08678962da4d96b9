"""Folders of images by class: `path/<class>/*.png`, or with splits `path/{train,valid,test}/<class>/*.jpg`.

Without splits, a tenth of each class is for validation and a tenth for the test, by seed. Without `valid`, a tenth of
the training images is for validation.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnet.data.images.decode import check_decoder, decode_picture
from linnet.data.images.pictures import Pictures, PictureSet, split_pictures
from linnet.errors import InputError
from linnet.storage import read_regular_file

SUFFIXES = (".png", ".jpg", ".jpeg")
LARGEST = 1 << 33  # bytes of all images, unpacked
LARGEST_FILE = 1 << 29  # bytes of one image, packed
SHARE = 0.1
Progress = Callable[[int, int], None]
KINDS = {1: "grey", 3: "in color"}  # by channels


class FolderOptions(NamedTuple):
    """How images are read: their size in pixels, "auto", "gray" or "rgb", and the seed of the split."""

    size: int
    color: str = "auto"
    variant: int = 0


def read_folder(path: Path, options: FolderOptions, progress: Progress | None = None) -> tuple[PictureSet, int]:
    """The splits of the images in a folder, and the number of other files there, which are not read."""
    check_decoder()
    if not path.is_dir():
        raise InputError(f"{path} is not a folder: data.path names a folder with one folder of images per class")
    named = [split for split in ("train", "valid", "test") if (path / split).is_dir()]
    roots = {split: path / split for split in named} if {"train", "test"} <= set(named) else {"": path}
    classes = _classes(roots.get("", path / "train"))
    files = {split: _files(root, classes) for split, root in roots.items()}
    total = sum(len(found) for found, _ in files.values())
    if total * options.size**2 * 3 > LARGEST:
        raise InputError(f"{path} has {total:,} images: at {options.size} pixels they exceed {LARGEST:,} bytes")
    whole = _read([file for found, _ in files.values() for file in found], options, progress)
    ends = np.cumsum([len(found) for found, _ in files.values()])
    parts = {
        split: whole.pick(np.arange(end - len(files[split][0]), end)) for split, end in zip(files, ends, strict=True)
    }
    if "" in parts:
        splits = split_pictures(parts[""], options.variant, {"valid": SHARE, "test": SHARE})
    elif "valid" in parts:
        splits = parts
    else:
        splits = {**split_pictures(parts["train"], options.variant, {"valid": SHARE}), "test": parts["test"]}
    return PictureSet(splits, classes), sum(others for _, others in files.values())


def _classes(root: Path) -> list[str]:
    """The names of the folders in a folder, sorted."""
    found = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not found:
        raise InputError(f"{root} has no folders: it must have one folder of images per class")
    if len(found) == 1:
        raise InputError(f"{root} has one class, {found[0]!r}: a classifier needs at least two")
    return found


def _files(root: Path, classes: list[str]) -> tuple[list[tuple[Path, int]], int]:
    """The images of a split with their labels, by class and name, and the number of other files."""
    extra = sorted({entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")})
    for name in extra:
        if name not in classes:
            raise InputError(f"{root / name} is a class that the training images do not have")
    pictures, others = [], 0
    for label, name in enumerate(classes):
        inside = sorted(entry for entry in (root / name).iterdir()) if (root / name).is_dir() else []
        mine = [entry for entry in inside if entry.suffix.lower() in SUFFIXES]
        others += len(inside) - len(mine)
        if not mine:
            raise InputError(f"{root / name} has no images: {', '.join(SUFFIXES)} are read")
        pictures += [(entry, label) for entry in mine]
    return pictures, others


def _read(files: list[tuple[Path, int]], options: FolderOptions, progress: Progress | None) -> Pictures:
    """These images with their labels; all must have as many channels as the first."""
    pixels: list[NDArray[np.uint8]] = []
    for number, (file, _) in enumerate(files, 1):
        try:
            data = read_regular_file(file, LARGEST_FILE)
        except OSError as error:
            raise InputError(f"cannot read {file}: {error.strerror or error}") from None
        picture = decode_picture(data, str(file), options.size, options.color)
        if pixels and len(picture) != len(pixels[0]):
            own, other = (KINDS[len(found)] for found in (picture, pixels[0]))
            hint = "data.color=gray or data.color=rgb converts all"
            raise InputError(f"{file} is {own}, but {files[0][0].name} is {other}: {hint}")
        pixels.append(picture)
        if progress is not None:
            progress(number, len(files))
    return Pictures(np.stack(pixels), np.array([label for _, label in files], np.int64))
