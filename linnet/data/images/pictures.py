"""Labeled images in memory: the arrays of a split, how a set is split, and where the sets are."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.errors import InputError

Pixels = NDArray[np.uint8]  # (count, channels, size, size)
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Pictures:
    """Square images of one size, and the number of the class of each."""

    pixels: Pixels
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, samples: NDArray[Any]) -> "Pictures":
        """The images of these numbers."""
        return Pictures(self.pixels[samples], self.labels[samples])

    def sha256(self) -> str:
        """The hash of pixels and labels."""
        found = hashlib.sha256(repr((self.pixels.shape, self.labels.shape)).encode())
        found.update(np.ascontiguousarray(self.pixels).data)
        found.update(np.ascontiguousarray(self.labels).data)
        return found.hexdigest()


@dataclass(frozen=True)
class PictureSet:
    """The splits of a data set and the names of its classes."""

    splits: Mapping[str, Pictures]
    classes: Sequence[str]

    def check(self, place: str) -> None:
        """Raise if there is nothing to learn or to measure."""
        if len(self.classes) < 2:
            raise InputError(f"{place} has one class, {self.classes[0]!r}: a classifier needs at least two")
        for split, pictures in self.splits.items():
            if not len(pictures):
                raise InputError(f"{place} leaves no image for the {split} split: it has too few")


def split_pictures(pictures: Pictures, seed: int, shares: Mapping[str, float]) -> dict[str, Pictures]:
    """Split by seed, class by class, so that every split has the classes in the same proportion.

    `shares` are those of the later splits, such as {"valid": 0.1, "test": 0.1}; the first split, "train", is the rest.
    """
    numbers: dict[str, list[NDArray[np.int64]]] = {"train": [], **{name: [] for name in shares}}
    for label in np.unique(pictures.labels):
        mine = np.flatnonzero(pictures.labels == label)
        bits = np.random.Philox(key=np.array([seed % 2**64, int(label)], np.uint64))
        mine, start = mine[np.argsort(bits.random_raw(len(mine)), kind="stable")], 0
        for name, share in shares.items():
            count = round(share * len(mine))
            numbers[name].append(mine[start : start + count])
            start += count
        numbers["train"].append(mine[start:])
    return {name: pictures.pick(np.sort(np.concatenate(parts))) for name, parts in numbers.items()}


def hold_out_pictures(train: Pictures, test: Pictures, share: int) -> dict[str, Pictures]:
    """The splits of a set with a test part of its own: the last 1/share of the training part is for validation."""
    cut = len(train) - len(train) // share
    return {"train": train.pick(np.arange(cut)), "valid": train.pick(np.arange(cut, len(train))), "test": test}


def picture_moments(pictures: Pictures) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel from 0 to 1, rounded; a constant channel has deviation 1."""
    pixels = pictures.pixels
    count = pixels.shape[0] * pixels.shape[2] * pixels.shape[3]
    sums = pixels.sum(axis=(0, 2, 3), dtype=np.int64)
    squares = np.array([np.square(pixels[:, c].astype(np.uint32)).sum(dtype=np.int64) for c in range(pixels.shape[1])])
    mean = sums / count
    variance = squares / count - mean**2
    std = np.where(variance > 0, np.sqrt(np.maximum(variance, 0)) / 255, 1.0)
    return [round(float(x), 4) for x in mean / 255], [max(round(float(x), 4), 1e-4) for x in std]
