"""LRA Text: is a film review positive or negative? It is read byte by byte (IMDb, Maas et al. 2011).

As in the benchmark, reviews are cut at a number of bytes, and the test reviews are also used for validation.
"""

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from linnet.data.lra.sequences import Sequences
from linnet.data.lra.sources import (
    read_source_files,
    read_source_label,
    read_source_rows,
    require_utf8_source,
    source_folder,
)
from linnet.errors import InputError

CLASSES = ("neg", "pos")
MISSING = (
    "LRA Text needs the IMDb reviews: get aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment/ and "
    "set data.path to it or to the folder aclImdb"
)
Review = tuple[str, int, bytes]  # split, label, text


def default_text_path() -> Path:
    """The folder of the reviews in LINNET_DATA."""
    return source_folder("imdb", MISSING)


def read_lra_text(path: Path, length: int, progress: Callable[[int, int], None] | None = None) -> dict[str, Sequences]:
    """The splits of the reviews at `path`, each review cut at `length` bytes."""
    tables = (path / "train.tsv.xz").is_file()
    found: dict[str, tuple[list[bytes], list[int]]] = {"train": ([], []), "test": ([], [])}
    for split, label, text in _read_tables(path) if tables else _read_public(path, progress):
        found[split][0].append(text[:length])
        found[split][1].append(label)
    for split, (rows, labels) in found.items():
        for label, name in enumerate(CLASSES):
            if label not in labels:
                get = f": {MISSING}" if not rows else ""
                raise InputError(f"{path} has no reviews {split}/{name}{get}")
    splits = {split: Sequences.of(rows, labels) for split, (rows, labels) in found.items()}
    return {"train": splits["train"], "valid": splits["test"], "test": splits["test"]}


def _read_tables(path: Path) -> Iterator[Review]:
    """Read two tables of label, id and text."""
    for split in ("train", "test"):
        for place, (label, _, text) in read_source_rows(path / f"{split}.tsv.xz", 3):
            if not text:
                raise InputError(f"{place}: the text is empty")
            yield split, read_source_label(label, place, 2), require_utf8_source(text, place)


def _read_public(path: Path, progress: Callable[[int, int], None] | None) -> Iterator[Review]:
    """Read the public layout: aclImdb/{train,test}/{pos,neg}/*.txt, one review per file."""

    def wanted(name: PurePosixPath) -> bool:
        return name.suffix == ".txt" and name.parts[-3:-2] in (("train",), ("test",)) and name.parts[-2] in CLASSES

    seen = set()
    for place, name, text in read_source_files(path, wanted, MISSING, progress):
        split, kind, _ = name.parts[-3:]
        if name.parts[-3:] in seen:
            raise InputError(f"{place}: {'/'.join(name.parts[-3:])} exists twice: keep one copy of the reviews")
        seen.add(name.parts[-3:])
        if not text:
            raise InputError(f"{place} is empty")
        yield split, CLASSES.index(kind), require_utf8_source(text, place)
