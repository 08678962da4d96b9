"""Studies without training: numbers that are computed, and times and memory that are measured."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import torch

from linnet import __version__
from linnet.screen import Screen
from linnet.storage import write_json_file
from linnet.studies.base import Request, Study
from linnet.studies.records import Record, stamp_record

Progress = Callable[[int, int], None]


class Untrained(Study):
    """A study that makes its records one after the other, each by one call."""

    @abstractmethod
    def result(self, run: str, screen: Screen) -> Record:
        """The numbers of one record."""

    def make(self, request: Request, out: Path, folder: Path, screen: Screen) -> int:
        """Make each missing record, with progress; a signal ends the process and keeps the written records."""
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for run in self.runs(request.scale):
                if not (folder / f"{run}.json").exists():
                    about = stamp_record(self.name, self.kind, self.command(request.scale))
                    write_json_file(folder / f"{run}.json", {**about, **self.result(run, screen)})
        finally:
            screen.close()
        return 0


class Computed(Untrained):
    """One record of numbers that follow from the settings; they are the same at both scales."""

    kind = "computed"
    scales = ("cpu", "paper")
    fields = frozenset({"settings", "command", "environment"})
    settings: ClassVar[Mapping[str, int]]

    @abstractmethod
    def compute(self, settings: Mapping[str, int], progress: Progress) -> Record:
        """The numbers."""

    def runs(self, scale: str, seeds: int | None = None) -> list[str]:
        """One record, named after the study."""
        return [self.name]

    def place(self, scale: str) -> str:
        """The same at each scale."""
        return self.name

    def result(self, run: str, screen: Screen) -> Record:
        """The numbers, and what they depend on."""
        found = self.compute(self.settings, screen.work(f"computing {self.name}"))
        where = {"linnet": __version__, "torch": torch.__version__}
        return {"settings": dict(self.settings), "environment": where, **found}


class Measured(Untrained):
    """Records of times and memory on this machine."""

    kind = "measured"
    scales = ("cpu",)
