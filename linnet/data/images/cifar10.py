"""CIFAR-10 in color (Krizhevsky 2009), from its public binary layout, as a folder or as the archive.

The last tenth of the training images is used for validation.
"""

from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np

from linnet.data.images.pictures import Pictures, PictureSet, hold_out_pictures
from linnet.data.lra.sources import read_source_files, source_folder
from linnet.errors import InputError

SIZE = 32
RECORD = 1 + 3 * SIZE**2  # a label, then red, green and blue
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
VALID_SHARE = 10  # one in ten
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
MISSING = (
    "get cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html and set data.path to it or to the "
    "folder cifar-10-batches-bin"
)


def cifar10_path() -> Path:
    """The folder of the images in LINNET_DATA."""
    return source_folder("cifar-10-batches-bin", MISSING)


def read_cifar10(path: Path, progress: Callable[[int, int], None] | None = None) -> PictureSet:
    """The splits of the images at `path`."""

    def wanted(name: PurePosixPath) -> bool:
        return name.name.startswith(("data_batch", "test_batch"))

    found: dict[str, Pictures] = {}
    for place, name, data in read_source_files(path, wanted, MISSING, progress):
        if name.suffix != ".bin":
            raise InputError(f"{place} belongs to CIFAR-10's pickled python version, which is not read: {MISSING}")
        if name.name in found:
            raise InputError(f"{place}: {name.name} exists twice: keep one copy of the images")
        found[name.name] = _records(place, data)
    for batch in (*TRAIN, "test_batch.bin"):
        if batch not in found:
            raise InputError(f"{path} has no {batch}: {MISSING}")
    parts = [found[batch] for batch in TRAIN]
    pixels, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("pixels", "labels"))
    return PictureSet(hold_out_pictures(Pictures(pixels, labels), found["test_batch.bin"], VALID_SHARE), CLASSES)


def _records(place: str, data: bytes) -> Pictures:
    """The records of one file."""
    if not data or len(data) % RECORD:
        raise InputError(f"{place} is cut short: it has {len(data):,} bytes, not a multiple of {RECORD}")
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    labels = records[:, 0].astype(np.int64)
    wrong = np.flatnonzero(labels >= len(CLASSES))
    if len(wrong):
        raise InputError(f"{place}: the label of image {wrong[0] + 1} is {labels[wrong[0]]}: it must be 0 to 9")
    return Pictures(records[:, 1:].reshape(-1, 3, SIZE, SIZE), labels)
