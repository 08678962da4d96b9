"""Augmentation: crops, flips and mixtures of images, all functions of (seed, epoch, sample).

No state is kept, so a resumed run sees the same images. The draws come from raw Philox bits, which never change.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linnet.data.images.pictures import Pixels

DRAWS = 5  # numbers per image: row and column of the crop, the flip, and the share and number of its partner
BLOCK = 4


class Augmentation(NamedTuple):
    """Random changes: `crop` pixels of padding, `flip` left to right, and `mixup`, the largest share of a partner."""

    crop: int = 0
    flip: bool = False
    mixup: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.crop or self.flip or self.mixup)


def augment_draws(seed: int, epochs: NDArray[np.int64], samples: NDArray[np.int64]) -> NDArray[np.float64]:
    """(B, DRAWS) numbers from 0 to 1: those of an image depend on the seed, its epoch and its number alone."""
    found = np.empty((len(samples), DRAWS))
    for row, (epoch, sample) in enumerate(zip(epochs.tolist(), samples.tolist(), strict=True)):
        key = np.array([seed % 2**64, epoch % 2**64], np.uint64)
        for part in range(0, DRAWS, BLOCK):  # one count of the generator gives four numbers
            bits = np.random.Philox(key=key, counter=np.array([sample, part, 0, 0], np.uint64)).random_raw(BLOCK)
            found[row, part : part + BLOCK] = ((bits >> np.uint64(11)) * 2.0**-53)[: DRAWS - part]
    return found


def augment_pictures(pixels: Pixels, draws: NDArray[np.float64], how: Augmentation) -> Pixels:
    """Shift each image by up to `crop` pixels, with black around it, and flip half of them."""
    count, channels, size, _ = pixels.shape
    if how.crop:
        wide = np.pad(pixels, ((0, 0), (0, 0), (how.crop,) * 2, (how.crop,) * 2))
        top, left = (np.floor(draws[:, i] * (2 * how.crop + 1)).astype(np.int64) for i in (0, 1))
        rows, columns = (start[:, None] + np.arange(size) for start in (top, left))
        index = np.arange(count)[:, None, None, None], np.arange(channels)[None, :, None, None]
        pixels = wide[*index, rows[:, None, :, None], columns[:, None, None, :]]
    if how.flip:
        turned = draws[:, 2] < 0.5
        pixels = np.where(turned[:, None, None, None], pixels[..., ::-1], pixels)
    return np.ascontiguousarray(pixels)


def mixture_partners(
    draws: NDArray[np.float64], mixup: float, count: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The number (B,) of each image's partner among `count` of them, and its share, uniform from 0 to `mixup`."""
    return np.floor(draws[:, 4] * count).astype(np.int64), (draws[:, 3] * mixup).astype(np.float32)
