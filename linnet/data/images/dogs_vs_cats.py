"""Dogs vs Cats at 64 x 64: the images of the contest (Elson et al. 2007), their middle square scaled to 64 pixels.

The task of LLN's vision transformer (arXiv 2311.13541), at a lower resolution. There is no public test part: a tenth
of each class is for validation and a tenth for the test, by seed. The layout is `cat.tar` and `dog.tar`, each with
images `cat/N.jpg` or `dog/N.jpg`.
"""

from pathlib import Path, PurePosixPath

import numpy as np

from linnet.data.images.decode import check_decoder, decode_picture
from linnet.data.images.pictures import Pictures, PictureSet, split_pictures
from linnet.data.lra.sources import Progress, read_source_files, source_folder
from linnet.errors import InputError

SIZE = 64
CLASSES = ("cat", "dog")
SHARES = {"valid": 0.1, "test": 0.1}
MISSING = (
    "get the images of Dogs vs Cats (https://www.kaggle.com/c/dogs-vs-cats), sort them into the folders cat and dog "
    "and read these with data.source=folder; or put cat.tar and dog.tar with images of 64 x 64 pixels into a folder "
    "and set data.path to it"
)


def dogs_vs_cats_path() -> Path:
    """The folder of the two archives in LINNET_DATA."""
    return source_folder("dogs-vs-cats-64", MISSING)


def read_dogs_vs_cats(path: Path, variant: int = 0, progress: Progress | None = None) -> PictureSet:
    """The splits of the images at `path`; `variant` is the seed of the split."""
    check_decoder()

    def wanted(name: PurePosixPath) -> bool:
        return name.suffix.lower() in (".jpg", ".jpeg", ".png")

    pixels, labels = [], []
    for label, name in enumerate(CLASSES):
        archive = path / f"{name}.tar"
        if not archive.is_file():
            raise InputError(f"{path} has no {name}.tar: {MISSING}")
        found = sorted(read_source_files(archive, wanted, MISSING, progress), key=lambda file: _number(file.name))
        if not found:
            raise InputError(f"{archive} has no images: {MISSING}")
        for file in found:
            pixels.append(decode_picture(file.data, file.place, SIZE, "rgb"))
            labels.append(label)
    pictures = Pictures(np.stack(pixels), np.array(labels, np.int64))
    return PictureSet(split_pictures(pictures, variant, SHARES), CLASSES)


def _number(name: PurePosixPath) -> tuple[int, str]:
    """N of `cat/N.jpg`, so that the order does not depend on that of the archive."""
    return (int(name.stem) if name.stem.isdecimal() else 2**62, str(name))
