"""Fashion-MNIST (Xiao et al. 2017) and any other set in MNIST's idx files, plain or gzipped.

The last tenth of the training images is used for validation.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linnet.data.images.pictures import Pictures, PictureSet, hold_out_pictures
from linnet.data.lra.sources import source_folder
from linnet.errors import InputError

SIZE = 28
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
VALID_SHARE = 10  # one in ten
LARGEST = 1 << 28  # bytes of a file, unpacked; the largest has 47 million
UNSIGNED_BYTES = 0x08  # the only type of entries that these sets have
PARTS = {"train": "train", "test": "t10k"}
MISSING = (
    "get the four files train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
    "t10k-labels-idx1-ubyte.gz from https://github.com/zalandoresearch/fashion-mnist and set data.path to their folder"
)


def fashion_mnist_path() -> Path:
    """The folder of the files in LINNET_DATA."""
    return source_folder("fashion-mnist", MISSING)


def read_fashion_mnist(path: Path) -> PictureSet:
    """The splits of the images in the folder `path`."""
    if not path.is_dir():
        raise InputError(f"{path} is not a folder: {MISSING}")
    parts = {part: _read_part(path, prefix) for part, prefix in PARTS.items()}
    return PictureSet(hold_out_pictures(parts["train"], parts["test"], VALID_SHARE), CLASSES)


def _read_part(path: Path, prefix: str) -> Pictures:
    """The images of one part and their labels."""
    pixels, place = _read_idx(path, f"{prefix}-images-idx3-ubyte", 3)
    labels, where = _read_idx(path, f"{prefix}-labels-idx1-ubyte", 1)
    if pixels.shape[1:] != (SIZE, SIZE):
        raise InputError(f"{place}: images are {pixels.shape[1]} x {pixels.shape[2]}, not {SIZE} x {SIZE}")
    if len(pixels) != len(labels):
        raise InputError(f"{where}: it has {len(labels):,} labels, and {place.name} {len(pixels):,} images")
    wrong = np.flatnonzero(labels >= len(CLASSES))
    if len(wrong):
        raise InputError(f"{where}: label {wrong[0] + 1} is {labels[wrong[0]]}: it must be 0 to {len(CLASSES) - 1}")
    return Pictures(pixels[:, None], labels.astype(np.int64))


def _read_idx(folder: Path, name: str, axes: int) -> tuple[NDArray[np.uint8], Path]:
    """The array of an idx file: two zero bytes, its type and number of axes, its sizes, then its entries."""
    place = next((folder / full for full in (name, f"{name}.gz") if (folder / full).is_file()), None)
    if place is None:
        raise InputError(f"{folder} has neither {name} nor {name}.gz: {MISSING}")
    try:
        with gzip.open(place) if place.suffix == ".gz" else place.open("rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{place} is cut short or damaged: {error}") from None
    if len(data) > LARGEST:
        raise InputError(f"{place} has more than {LARGEST:,} bytes, which is too large")
    if data[:4] != bytes((0, 0, UNSIGNED_BYTES, axes)) or len(data) < 4 + 4 * axes:
        raise InputError(f"{place} is not an idx file of {axes} axes")
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    if math.prod(shape) != len(data) - 4 - 4 * axes or not shape[0]:
        raise InputError(f"{place} is cut short or damaged: it has {len(data):,} bytes for {shape} entries")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape), place
