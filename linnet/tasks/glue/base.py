"""The shared part of the GLUE tasks: each reads GLUE's own files, by the layout of its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from linnet.data.glue import GLUE, GlueLayout, default_glue_path, read_glue_file, read_glue_splits
from linnet.data.labeled_texts import LabeledTexts
from linnet.tasks.sentences import SentenceData, SentenceTask, sentence_head


class GlueTask(SentenceTask):
    """One task of GLUE, scored on its development set: the labels of its test set are not public."""

    name: ClassVar[str]
    validates_on_test = True

    @classmethod
    def layout(cls) -> GlueLayout:
        """The layout of the task's files."""
        return GLUE[cls.name.removeprefix("glue/")]

    @classmethod
    def places(cls, data: SentenceData) -> dict[str, Path]:
        """The folder of the task in LINNET_DATA."""
        return {} if data.path is not None else {"path": default_glue_path(cls.name.removeprefix("glue/"))}

    @classmethod
    def planned_fields(cls, data: SentenceData, pretrain: bool = False) -> dict[str, Any]:
        """The head; everything else is the encoder's."""
        return sentence_head(data.pooling, cls.layout().classes)

    @property
    def metric_names(self) -> Sequence[str]:  # type: ignore[override]
        """The metrics of the benchmark, the one that ranks first."""
        return self.layout().metrics

    @property
    def classes(self) -> Sequence[str]:
        """The classes of the benchmark; none for STS-B."""
        return self.layout().classes

    def _path(self) -> Path:
        return Path(self.data.path or default_glue_path(self.name.removeprefix("glue/")))

    def read(self) -> dict[str, LabeledTexts]:
        """The training set and the development set, or a part of a task, split by seed."""
        return read_glue_splits(self.name.removeprefix("glue/"), self._path(), self.data.variant)

    def unlabeled(self, path: Path | None) -> LabeledTexts:
        """The test set, whose labels are not public; for a part, its held-out texts."""
        if path is None and self.layout().part:
            return self.texts["test"]
        return read_glue_file(self.name.removeprefix("glue/"), path or self._path() / self.layout().test, labels=False)


class GluePart(GlueTask):
    """A part of a task whose other files are unavailable. Its score carries the part's name."""

    validates_on_test = False
