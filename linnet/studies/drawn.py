"""Studies without records of their own: figures drawn from the records of other studies."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from linnet.errors import InputError
from linnet.figures.figure import Figure, save_figures
from linnet.figures.table import Table
from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.storage import file_beside
from linnet.studies.base import OWNER, SOURCE, Report, Request, Study, check_study_picture
from linnet.studies.records import Record, one_line_record_damage, records_sha256, study_of_record


class Drawn(Study):
    """One figure of the results of several studies, whose folders are beside it."""

    kind = "drawn"
    scales = ("cpu",)
    keeps_records = False
    core_hours = 0.0  # those of its sources are theirs
    sources: ClassVar[tuple[str, ...]]  # names of studies

    @abstractmethod
    def draw(self, found: Mapping[str, Sequence[Record]]) -> Figure:
        """The figure, drawn from the records of each source."""

    def runs(self, scale: str, seeds: int | None = None) -> list[str]:
        """None."""
        return []

    def make(self, request: Request, out: Path, folder: Path, screen: Screen) -> int:
        """Do nothing: each source is run by its own name."""
        return 0

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """Nothing, because there is no page."""
        return []

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """The figure of the records of all sources."""
        return [self.draw({name: [r for r in records if study_of_record(r) == name] for name in self.sources})]

    def reproduce(self, request: Request, screen: Screen) -> Report:
        """Draw the figure; --out or --results is its file, or its file without the ending."""
        self.check(request)
        place = request.results or request.out or Path("runs") / self.place(request.scale)
        picture = place if place.suffix == ".png" else file_beside(place, ".png")
        folders = [self.source(name, picture.parent, request.scale) for name in self.sources]
        records = [record for name, folder in zip(self.sources, folders, strict=True) for record in _read(name, folder)]
        with one_line_record_damage(*folders):
            (figure,) = self.figures(records, "")
        _check_place(picture, self.name)
        save_figures([figure], picture, {SOURCE: records_sha256(records), OWNER: self.name})
        return Report(str(picture), {"figure": str(picture), "systems": [series.name for series in figure.series]})

    def source(self, name: str, beside_it: Path, scale: str) -> Path:
        """The folder with the records of a source."""
        base = beside_it / STUDY[name]().place(scale)
        folder = next((folder for folder in (base / "results", base) if any(folder.glob("*.json"))), None)
        if folder is None:
            raise InputError(f"{base / 'results'} holds no results: `linnet reproduce {name}` makes them")
        return folder


def _check_place(picture: Path, study: str) -> None:
    """Raise if the figure belongs to another study; a figure beside a folder of results belongs to them."""
    check_study_picture(picture, study)
    folder = picture.with_suffix("")
    if any(folder.glob("*.json")):
        where = f"{picture} is the figure of the results in {folder}"
        raise InputError(f"{where}: change --out or --results")


def _read(name: str, folder: Path) -> list[Record]:
    records: list[Record] = STUDY[name]().read(folder)
    return records
