"""Classify your own texts or pairs: a tab-separated file with a header, one text and its label per row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from linnet.config import Place
from linnet.data.labeled_texts import LabeledTexts, read_labeled_texts, read_table_rows, split_labeled_texts
from linnet.errors import InputError
from linnet.registry import TASK
from linnet.tasks.sentences import SentenceData, SentenceTask

HELD_OUT = (0.1, 0.1)  # the shares of valid and test, unless they have their own files
MOST = 1000  # classes

Name = Annotated[str, Field(min_length=1)]


class ClassifyData(SentenceData):
    """The file or files, the names of their columns, and the classes, which a new run takes from the training file."""

    valid_path: Place = None
    test_path: Place = None
    text: Name = "text"
    pair: Name | None = None
    label: Name = "label"
    labels: Annotated[tuple[str, ...], Field(strict=False, examples=[["no", "yes"]])] = ()

    def check(self) -> None:
        """Raise if there is no file."""
        super().check()
        if self.path is None:
            raise InputError("data.path is missing: set it to a tab-separated file, as in --set data.path=my.tsv")

    def columns(self) -> tuple[str, ...]:
        """The columns of the texts."""
        return (self.text,) if self.pair is None else (self.text, self.pair)


@TASK.add("classify")
class Classify(SentenceTask):
    """The user's own texts. A split without its own file is held out from the training file, by seed."""

    Data = ClassifyData
    data: ClassifyData
    metric_names = ("accuracy",)

    @staticmethod
    def fresh(data: Any) -> dict[str, Any]:
        """The classes of the training file, in alphabetical order, and the hash of the encoder."""
        found = SentenceTask.fresh(data)
        if data.labels or data.path is None:
            return found
        rows = read_table_rows(Path(data.path))
        _, head = next(rows, ("", []))
        if data.label not in head:
            raise InputError(f"{data.path}: no column is named {data.label!r}: its header has {', '.join(head[:12])!r}")
        at = head.index(data.label)
        names = sorted({cells[at].strip() for _, cells in rows if len(cells) > at})
        if not 2 <= len(names) <= MOST:
            raise InputError(f"{data.path}: the column {data.label!r} has {len(names)} labels: 2 to {MOST} are allowed")
        return {**found, "labels": tuple(names)}

    @property
    def classes(self) -> Sequence[str]:
        """The labels of the training file."""
        return self.data.labels

    def read(self) -> dict[str, LabeledTexts]:
        """The named files and, for splits without a file, a share of the training file."""
        data = self.data
        assert data.path is not None  # `check` has seen it
        train = self._file(Path(data.path))
        given = {"valid": data.valid_path, "test": data.test_path}
        drawn = [split for split, path in given.items() if path is None]
        if drawn:
            shares = HELD_OUT[: len(drawn)]
            train, *held = split_labeled_texts(train, data.variant, shares)
            own = dict(zip(drawn, held, strict=True))
        else:
            own = {}
        return {"train": train, **{s: own[s] if path is None else self._file(Path(path)) for s, path in given.items()}}

    def _file(self, path: Path) -> LabeledTexts:
        return read_labeled_texts(path, self.data.columns(), self.data.label, self.classes)

    def unlabeled(self, path: Path | None) -> LabeledTexts:
        """The texts of a file, whose labels are not read; by default those that are held out for testing."""
        return self.texts["test"] if path is None else read_labeled_texts(path, self.data.columns(), None, ())
