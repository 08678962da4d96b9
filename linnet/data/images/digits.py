"""The handwritten digits of scikit-learn, embedded: 1,797 images of 8 x 8 pixels with 17 levels of grey.

They are the test part of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, UCI repository, CC BY 4.0).
`digits.xz` holds 1,797 bytes of labels, then the levels of each image, row by row. They are split by seed.
"""

import lzma
from pathlib import Path

import numpy as np

from linnet.data.images.pictures import Pictures, PictureSet, split_pictures

COUNT, SIZE, LEVELS = 1797, 8, 16
SHARES = {"valid": 0.15, "test": 0.15}
CLASSES = tuple("0123456789")


def read_digits(variant: int = 0) -> PictureSet:
    """The splits of the digits; `variant` is the seed of the split."""
    with lzma.open(Path(__file__).with_name("digits.xz")) as file:
        data = np.frombuffer(file.read(), np.uint8)
    labels, levels = data[:COUNT].astype(np.int64), data[COUNT:].reshape(COUNT, 1, SIZE, SIZE)
    pixels = np.rint(levels * (255 / LEVELS)).astype(np.uint8)
    return PictureSet(split_pictures(Pictures(pixels, labels), variant, SHARES), CLASSES)
