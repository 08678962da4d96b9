"""LRA Image: classify a small image, read pixel by pixel (CIFAR-10, Krizhevsky 2009, in grey levels).

A token is a grey level, 0 to 255; 0 is an ordinary token, not padding. The last tenth of the training images is used
for validation.
"""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.data.lra.sequences import Sequences
from linnet.data.lra.sources import read_source_files, source_folder
from linnet.errors import InputError

PIXELS = 32 * 32
LARGEST_GREY = 1 << 28  # bytes of all arrays, unpacked; CIFAR-10 in grey levels has 62 million
RECORD = 1 + 3 * PIXELS  # a label, then red, green and blue
CLASSES = 10
VALID_SHARE = 10  # one in ten
LUMA = np.array([0.2989, 0.587, 0.114])
MISSING = (
    "LRA Image needs CIFAR-10: get cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html and set "
    "data.path to it or to the folder cifar-10-batches-bin"
)
Pictures = tuple[NDArray[np.uint8], NDArray[np.int64]]  # (count, PIXELS) and their labels


def default_image_path() -> Path:
    """The folder of the images in LINNET_DATA."""
    return source_folder("cifar10-gray", MISSING)


def read_lra_image(path: Path, progress: Callable[[int, int], None] | None = None) -> dict[str, Sequences]:
    """The splits of the images at `path`."""
    grey = path / "cifar10_gray.npz"
    train, test = _read_grey(grey) if grey.is_file() else _read_binary(path, progress)
    cut = len(train[0]) - len(train[0]) // VALID_SHARE
    parts = {
        "train": (train[0][:cut], train[1][:cut]),
        "valid": (train[0][cut:], train[1][cut:]),
        "test": test,
    }
    return {split: image_sequences(*pictures) for split, pictures in parts.items()}


def image_sequences(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> Sequences:
    """Images (count, pixels), row by row, as sequences of equal length."""
    count, size = pixels.shape
    return Sequences(pixels.reshape(-1), np.arange(count + 1, dtype=np.int64) * size, labels)


def _read_grey(path: Path) -> tuple[Pictures, Pictures]:
    """Read images that are stored as grey levels."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            size = sum(part.file_size for part in file.zip.infolist())
            if size > LARGEST_GREY:
                raise InputError(f"it unpacks to {size:,} bytes, and at most {LARGEST_GREY:,} are read")
            x, y, x_test, y_test = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    except Exception as error:  # noqa: BLE001  zipfile, zlib and numpy each raise their own errors for damage
        raise InputError(f"{path} is not an intact file of grey images: {str(error)[:200]}") from None
    return _checked(path, x, y), _checked(path, x_test, y_test)


def _checked(path: Path | str, x: NDArray[Any], y: NDArray[Any]) -> Pictures:
    """Check the shape and type of the images, and their labels."""
    if x.dtype != np.uint8 or x.shape[1:] not in ((PIXELS,), (32, 32)) or y.shape != x.shape[:1]:
        raise InputError(f"{path}: images are {x.dtype} {x.shape}, labels {y.shape}, not uint8 (n, {PIXELS}), (n,)")
    if y.dtype.kind not in "iu":
        raise InputError(f"{path}: labels are {y.dtype}, not whole numbers")
    wrong = np.flatnonzero((y < 0) | (y >= CLASSES))
    if len(wrong):
        raise InputError(f"{path}: the label of image {wrong[0] + 1} is {y[wrong[0]]}: it must be 0 to {CLASSES - 1}")
    return x.reshape(-1, PIXELS), y.astype(np.int64)


def _read_binary(path: Path, progress: Callable[[int, int], None] | None) -> tuple[Pictures, Pictures]:
    """The public binary layout: data_batch_1.bin to data_batch_5.bin and test_batch.bin."""

    def wanted(name: PurePosixPath) -> bool:
        return name.name.startswith(("data_batch", "test_batch"))

    batches: dict[str, Pictures] = {}
    for place, name, data in read_source_files(path, wanted, MISSING, progress):
        if name.suffix != ".bin":
            raise InputError(f"{place} belongs to CIFAR-10's pickled python version, which is not read: {MISSING}")
        if name.name in batches:
            raise InputError(f"{place}: {name.name} exists twice: keep one copy of the images")
        batches[name.name] = _to_grey(place, data)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    for batch in (*names, "test_batch.bin"):
        if batch not in batches:
            raise InputError(f"{path} has no {batch}: {MISSING}")
    train = [batches[batch] for batch in names]
    return (np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])), batches["test_batch.bin"]


def _to_grey(place: str, data: bytes) -> Pictures:
    """The records of one file, with colors converted to grey levels."""
    if not data or len(data) % RECORD:
        raise InputError(f"{place} is cut short: it has {len(data):,} bytes, not a multiple of {RECORD}")
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    labels = records[:, 0].astype(np.int64)
    colors = records[:, 1:].reshape(-1, 3, PIXELS)
    return _checked(place, np.rint(np.einsum("c,ncp->np", LUMA, colors)).astype(np.uint8), labels)
