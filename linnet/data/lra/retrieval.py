"""LRA Retrieval: does one paper cite the other? Both are read byte by byte (ACL Anthology Network, Radev et al. 2013).

The benchmark's own pairs are three public tables. The small set is built from citations: each paper belongs to exactly
one split, and for each citation within a split one pair without a citation is drawn.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.config import short_config_value
from linnet.data.lra.sequences import Sequences
from linnet.data.lra.sources import read_source_label, read_source_rows, require_utf8_source, source_folder
from linnet.errors import InputError

NAMES = {"train": "new_aan_pairs.train.tsv", "valid": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
SHARES = (0.6, 0.8)  # of the papers of the small set: where train and valid end
MISSING = (
    "LRA Retrieval needs new_aan_pairs.{train,eval,test}.tsv: get lra_release.gz of "
    "https://github.com/google-research/long-range-arena and set data.path to its folder tsv_data "
    "(the task lra/retrieval_small uses a small real set)"
)
MISSING_SMALL = (
    "lra/retrieval_small needs docs.tsv.xz (id, text) and citations.tsv (citing id, cited id): build them from papers "
    "of https://aclanthology.org and set data.path to their folder"
)


@dataclass(frozen=True)
class Pairs:
    """Pairs of documents by number, and whether they belong together."""

    documents: Sequences
    pairs: NDArray[np.int64]  # (count, 2)
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


class _Library:
    """Documents, each stored once even if it is in several pairs."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.numbers: dict[bytes, int] = {}
        self.texts: list[bytes] = []

    def number(self, text: bytes) -> int:
        """The number of a document, cut at `length` bytes."""
        text = text[: self.length]
        key = hashlib.blake2b(text, digest_size=16).digest()
        if key not in self.numbers:
            self.numbers[key] = len(self.texts)
            self.texts.append(text)
        return self.numbers[key]

    def pairs(self, found: Iterable[tuple[int, int, int]]) -> Pairs:
        """The pairs of these triples: two document numbers and a label."""
        table = np.array(list(found), np.int64).reshape(-1, 3)
        return Pairs(Sequences.of(self.texts, [0] * len(self.texts)), table[:, :2], table[:, 2])


def read_retrieval(path: Path, length: int, progress: Callable[[int, int], None] | None = None) -> dict[str, Pairs]:
    """The splits of the public tables: label, two ids, two texts."""
    splits = {}
    for done, (split, name) in enumerate(NAMES.items(), 1):
        if not (path / name).is_file():
            raise InputError(f"{path / name} does not exist: {MISSING}")
        library, found = _Library(length), []
        for place, (label, _, _, *texts) in read_source_rows(path / name, 5):
            if not all(texts):
                raise InputError(f"{place}: a text is empty")
            one, other = (library.number(require_utf8_source(text, place)) for text in texts)
            found.append((one, other, read_source_label(label, place, 2)))
        if not found:
            raise InputError(f"{path / name} has no rows")
        splits[split] = library.pairs(found)
        if progress is not None:
            progress(done, len(NAMES))
    return splits


def default_retrieval_path() -> Path:
    """The folder of the small set in LINNET_DATA."""
    return source_folder("aan-small", MISSING_SMALL)


def read_small_retrieval(path: Path, length: int, seed: int = 0) -> dict[str, Pairs]:
    """The splits of the small set, with one pair without a citation per citation; skips papers without text."""
    texts: dict[bytes, bytes] = {}
    for place, (name, text) in read_source_rows(_file(path, "docs.tsv.xz"), 2):
        if name in texts:
            raise InputError(f"{place}: the id {short_config_value(name.decode('ascii', 'replace'))} occurs twice")
        texts[name] = require_utf8_source(text, place)
    cited: dict[bytes, set[bytes]] = {}
    for place, pair in read_source_rows(_file(path, "citations.tsv"), 2):
        for name in pair:
            if name not in texts:
                raise InputError(
                    f"{place}: {short_config_value(name.decode('ascii', 'replace'))} is not an id in docs.tsv.xz"
                )
        cited.setdefault(pair[0], set()).add(pair[1])
    splits = {
        split: _draw_pairs([n for n in texts if texts[n] and _split_of(n, seed) == split], texts, cited, length, seed)
        for split in NAMES
    }
    for split, pairs in splits.items():
        if not len(pairs):
            raise InputError(f"{path}: no two papers of the {split} split cite each other: add more papers")
    return splits


def _file(path: Path, name: str) -> Path:
    if not (path / name).is_file():
        raise InputError(f"{path / name} does not exist: {MISSING_SMALL}")
    return path / name


def _split_of(name: bytes, seed: int) -> str:
    """The split of a paper, by the hash of its id."""
    u = _uniform(b"split", name, seed)
    return list(NAMES)[sum(u >= share for share in SHARES)]


def _uniform(*key: Any) -> float:
    """A number in [0, 1) that depends only on the key."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big") / 2**56


def _draw_pairs(
    names: list[bytes], texts: dict[bytes, bytes], cited: dict[bytes, set[bytes]], length: int, seed: int
) -> Pairs:
    """The citations among these papers and, for each, a pair of the citing paper and one that it has no citation with.

    The second paper is drawn from the cited papers, in proportion to how often each is cited, so that the second paper
    alone does not reveal the label.
    """
    library, found = _Library(length), []
    numbers = {name: library.number(texts[name]) for name in names}
    targets = {citing: sorted(cited.get(citing, set()) & numbers.keys() - {citing}) for citing in names}
    popular = [target for citing in names for target in targets[citing]]
    for citing in names:
        taken = cited.get(citing, set()) | {citing}
        for target in targets[citing]:
            found.append((numbers[citing], numbers[target], 1))
            free = [name for name in popular if name not in taken and citing not in cited.get(name, ())]
            if free:
                other = free[int(_uniform(b"other", citing, target, seed) * len(free))]
                found.append((numbers[citing], numbers[other], 0))
                taken = taken | {other}
    return library.pairs(found)
