"""Texts, or pairs of texts, with a label each: the container, and a reader of tab-separated files with a header."""

import csv
import hashlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linnet.config import short_config_value
from linnet.errors import InputError
from linnet.storage import one_line_file_errors, read_hashed_file

LARGEST = 1 << 31  # bytes of one file


@dataclass(frozen=True)
class LabeledTexts:
    """Texts, their second halves if they are pairs, and their labels: numbers of classes, or scores.

    `rows` names the place of each text in its file, for errors and predictions. `labels` is empty if a file has none.
    """

    first: list[str]
    second: list[str] | None
    labels: NDArray[np.float64]
    rows: list[str]

    def __len__(self) -> int:
        return len(self.first)

    def select_texts(self, chosen: Sequence[int] | NDArray[np.int64]) -> "LabeledTexts":
        """Some of the texts, in this order."""
        second = None if self.second is None else [self.second[i] for i in chosen]
        labels = self.labels[np.asarray(chosen)] if len(self.labels) else self.labels
        return LabeledTexts([self.first[i] for i in chosen], second, labels, [self.rows[i] for i in chosen])

    def texts_sha256(self) -> str:
        """A hash of texts and labels."""
        digest = hashlib.sha256(self.labels.tobytes())
        for part in (self.first, self.second or []):
            for text in part:
                digest.update(f"{len(text)}:{text}".encode())
        return digest.hexdigest()


def read_table_rows(path: Path, quoted: bool = False) -> Iterator[tuple[str, list[str]]]:
    """The place and the cells of each row of a tab-separated file. Drops a byte-order mark.

    Quotes are ordinary characters, as in GLUE's own files, unless the file was written with `quoted` cells.
    """
    with one_line_file_errors("read", path):
        if path.stat().st_size > LARGEST:
            raise InputError(f"{path} has {path.stat().st_size:,} bytes: at most {LARGEST:,} are read")
        data = bytes(read_hashed_file(path)[0])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, row {line}: the file is not UTF-8 text") from None
    if quoted:
        yield from _quoted_rows(path, text)
        return
    for number, written in enumerate(text.split("\n"), 1):
        if written.strip("\r"):
            yield f"{path}, row {number}", written.rstrip("\r").split("\t")


def _quoted_rows(path: Path, text: str) -> Iterator[tuple[str, list[str]]]:
    number = 0
    try:
        for number, cells in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter="\t"), 1):
            yield f"{path}, row {number}", cells
    except csv.Error as error:
        raise InputError(f"{path}, row {number + 1}: {error}") from None


def read_labeled_texts(
    path: Path, columns: Sequence[str | int], label: str | int | None, classes: Sequence[str], quoted: bool = False
) -> LabeledTexts:
    """The texts of a file, whose `columns` are names of its header, or numbers if it has none.

    A label is one of `classes`; without classes it is a score. With `label` None the file has no labels.
    """
    rows = read_table_rows(path, quoted)
    wanted = [*columns, *([] if label is None else [label])]
    width = None
    if any(isinstance(column, str) for column in wanted):
        head = next(rows, None)
        if head is None:
            raise InputError(f"{path} is empty: it needs a header and rows")
        for column in wanted:
            if column not in head[1]:
                shown = ", ".join(map(short_config_value, head[1][:12]))
                raise InputError(f"{path}: no column is named {column!r}: its header has {shown}")
        places, width = [head[1].index(str(column)) for column in wanted], len(head[1])
    else:
        places = [int(column) for column in wanted]
    texts: list[list[str]] = [[] for _ in columns]
    labels: list[float] = []
    named: list[str] = []
    for place, cells in rows:
        if len(cells) <= max(places) or (width is not None and len(cells) != width):
            raise InputError(f"{place}: it has {len(cells)} columns, not {width or max(places) + 1}")
        for part, at in zip(texts, places, strict=False):
            if not cells[at].strip():
                raise InputError(f"{place}: the text in column {at + 1} is empty")
            part.append(cells[at].strip())
        if label is not None:
            labels.append(_label(cells[places[-1]].strip(), place, classes))
        named.append(place)
    if not named:
        raise InputError(f"{path} has no rows")
    return LabeledTexts(texts[0], texts[1] if len(texts) > 1 else None, np.array(labels), named)


def _label(cell: str, place: str, classes: Sequence[str]) -> float:
    """A class as its number, or a score."""
    if classes:
        if cell not in classes:
            allowed = ", ".join(classes[:12])
            raise InputError(f"{place}: the label is {short_config_value(cell)}: it must be one of {allowed}")
        return float(classes.index(cell))
    try:
        score = float(cell)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{place}: the score is {short_config_value(cell)}: it must be a number")
    return score


def split_labeled_texts(texts: LabeledTexts, seed: int, shares: Sequence[float]) -> list[LabeledTexts]:
    """The texts in random order, cut into these shares; the rest comes first."""
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(texts))
    sizes = [max(1, round(share * len(texts))) for share in shares]
    if sum(sizes) >= len(texts):
        raise InputError(f"{texts.rows[0].partition(', row')[0]} has {len(texts)} rows: too few to hold any out")
    ends = np.cumsum([len(texts) - sum(sizes), *sizes])
    return [texts.select_texts(part) for part in np.split(order, ends[:-1])]
