"""The base class of studies: a study is a table or figure that one command runs, records and renders.

A study is a class in its own file, registered by `@STUDY.add("its-name")`. Its base class is its kind: `Trained`,
`Computed`, `Measured` or `Drawn`. The file defines what is run at each scale, and how the records are shown.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from linnet.errors import InputError, unknown_name_error
from linnet.figures.figure import Figure, check_figure_matplotlib, read_figure_metadata, save_figures
from linnet.figures.heatmap import Grid, save_heatmaps
from linnet.figures.page import write_markdown_page
from linnet.figures.table import Table
from linnet.screen import Screen
from linnet.storage import file_beside
from linnet.studies.claims import Claim, claims_table
from linnet.studies.index import update_index_of_results
from linnet.studies.records import Record, check_records_origin, one_line_record_damage, read_records, records_sha256

TRANSNORMER = "The Devil in Linear Transformer, EMNLP 2022, arXiv 2210.10340"
LLN = "Linear Log-Normal Attention with Unbiased Concentration, ICLR 2024, arXiv 2311.13541"
OWNER, SOURCE = "linnet-study", "linnet-results"  # metadata of a figure: its study, and the digest of its records


class Request(NamedTuple):
    """The options of `linnet reproduce`."""

    scale: str = "cpu"
    out: Path | None = None
    results: Path | None = None
    only: tuple[str, ...] = ()
    seeds: int | None = None
    render: bool = False


class Report(NamedTuple):
    """The result of a reproduction: as text, as data, and the signal that stopped it (0 if none did)."""

    text: str
    data: dict[str, Any]
    signal: int = 0


class Planned(NamedTuple):
    """One planned run; all numbers are 0 if nothing is trained."""

    run: str
    parameters: int = 0
    tokens: int = 0
    steps: int = 0
    gpu_hours: float = 0.0


class Study(ABC):
    """A table or figure; subclasses are the kinds of studies."""

    name: ClassVar[str]  # set by the registry
    kind: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    item: ClassVar[str]  # such as "Table 4"
    scales: ClassVar[Collection[str]]
    picture: ClassVar[str]  # what the figure shows, for readers who cannot see it
    core_hours: ClassVar[float | None] = None  # time of all planned runs at the CPU scale, if known
    keeps_records: ClassVar[bool] = True
    fields: ClassVar[frozenset[str]] = frozenset()  # the fields of every record of this kind

    @abstractmethod
    def runs(self, scale: str, seeds: int | None = None) -> list[str]:
        """The names of the planned runs, each of which leaves one record."""

    @abstractmethod
    def make(self, request: Request, out: Path, folder: Path, screen: Screen) -> int:
        """Do the runs that have no record in `folder`; returns the signal that stopped it, or 0."""

    @abstractmethod
    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """Tables and paragraphs of the page, in order."""

    @abstractmethod
    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """The panels of the figure."""

    def maps(self, records: Sequence[Record]) -> Grid:
        """Attention maps for a second figure; none by default."""
        return []

    def about_maps(self, records: Sequence[Record]) -> tuple[int, str]:
        """The length of the maps in tokens, and the note below them."""
        raise NotImplementedError

    def claims(self, records: Sequence[Record]) -> list[Claim]:
        """Claims of the paper with their verdicts; none by default."""
        return []

    def dry_run(self, scale: str, only: Sequence[str] = (), seeds: int | None = None) -> list[Planned]:
        """The planned runs; reads, generates and writes nothing."""
        self.check(Request(scale, only=tuple(only), seeds=seeds))
        return [Planned(run) for run in self.runs(scale, seeds)]

    def describe(self) -> dict[str, Any]:
        """The study in `linnet list studies`; `runs` and `core_hours` are those of its first scale."""
        scales = list(self.scales)
        about = {"name": self.name, "kind": self.kind, "paper": self.paper, "item": self.item, "title": self.title}
        hours = self.estimated_core_hours(scales[0])
        return {**about, "scales": scales, "runs": len(self.runs(scales[0])), "core_hours": hours}

    def estimated_core_hours(self, scale: str) -> float | None:
        """The time of all planned runs on CPU cores: as stated; None if it is not known."""
        return self.core_hours

    def command(self, scale: str) -> str:
        """The command that makes the records."""
        return f"linnet reproduce {self.name}"

    def heading(self, scale: str) -> str:
        """The title of the page."""
        return self.title

    def place(self, scale: str) -> str:
        """The name of the folder of the study, and of its committed results."""
        return f"{self.name}-{scale}"

    def folders(self, request: Request) -> tuple[Path, Path]:
        """The folder of the runs, and that of their records."""
        out = request.out or Path("runs") / self.place(request.scale)
        return out, request.results or out / "results"

    def check(self, request: Request) -> None:
        """Raise if the request names a scale that the study lacks, or selects runs of a study without runs."""
        if request.scale not in self.scales:
            raise unknown_name_error("scale", request.scale, self.scales)
        for option, value in (("only", request.only[:1]), ("seeds", request.seeds)):
            if value:
                shown = value[0] if isinstance(value, tuple) else value
                raise InputError(f"--{option} is {shown!r}: {self.name} has no runs to choose from")

    def reproduce(self, request: Request, screen: Screen) -> Report:
        """Do the missing runs, unless only rendering is requested, and render the records."""
        self.check(request)
        check_figure_matplotlib()  # before the runs, which may take days
        out, folder = self.folders(request)
        check_records_origin(folder, self.command(request.scale))
        signal = 0 if request.render else self.make(request, out, folder, screen)
        return self.report(request, out, folder, signal)

    def report(self, request: Request, out: Path, folder: Path, signal: int) -> Report:
        """Render the records so far, and count them."""
        return self.rendered_so_far(request, folder, needed=request.render)

    def rendered_so_far(self, request: Request, folder: Path, needed: bool) -> Report:
        """Render the records if there are any, and count the finished runs; raises if `needed` and there are none."""
        there, files, lines = {path.stem for path in folder.glob("*.json")}, list[Path](), list[str]()
        if there or needed:
            files = self.render(folder, request.scale)
            lines = [self.to_markdown(self.read(folder)), " and ".join(map(str, files))]
        planned = self.runs(request.scale, request.seeds)
        done = len(there.intersection(planned))
        other = len(there) - done
        more = f"; other results there: {other}" if other else ""
        lines.append(f"{done} of {len(planned)} runs are done{more}")
        named = dict(itertools.zip_longest(("page", "figure", "maps"), map(str, files)))
        return Report("\n".join(lines), {"done": done, "planned": len(planned), "other": other, **named})

    def read(self, folder: Path) -> list[Record]:
        """The records in a folder."""
        return read_records(folder, self.name, self.fields)

    def to_markdown(self, records: Sequence[Record]) -> str:
        """Tables, paragraphs and claims."""
        claims = self.claims(records)
        parts = [*self.parts(records), *([claims_table(claims)] if claims else [])]
        return "\n\n".join(part.to_markdown() if isinstance(part, Table) else part for part in parts)

    def rendered(self, records: Sequence[Record], picture: str) -> str:
        """The part of the page between its markers."""
        rows = [row for row, _ in self.maps(records)]
        maps = f"\n![attention maps: {' and '.join(rows)}]({study_maps_name(picture)})\n" if rows else ""
        return f"\n{self.to_markdown(records)}\n\n![{self.picture}]({picture})\n{maps}"

    def render(self, folder: Path, scale: str) -> list[Path]:
        """Write the page `<folder>.md`, between its markers, the figure `<folder>.png`, and the maps if there are any,
        and update the index of the pages beside it.

        Raises before anything is written if the records cannot be shown or combined.
        """
        records = self.read(folder)
        single = [(path, [record]) for path, record in zip(sorted(folder.glob("*.json")), records, strict=True)]
        for path, shown in (*single, (folder, records)):
            with one_line_record_damage(path):
                self.rendered(shown, "")
                self.figures(shown, "")
        page, picture = file_beside(folder, ".md"), file_beside(folder, ".png")
        maps, grid = picture.with_name(study_maps_name(picture.name)), self.maps(records)
        files = [page, picture, *([maps] if grid else [])]
        for file in files[1:]:
            check_study_picture(file, self.name)
        write_markdown_page(page, self.heading(scale), self.rendered(records, picture.name))
        about = {SOURCE: records_sha256(records), OWNER: self.name}
        save_figures(self.figures(records, self.heading(scale)), picture, about)
        if grid:
            save_heatmaps(grid, maps, *self.about_maps(records), about)
        update_index_of_results(folder.parent)
        return files


def check_study_picture(picture: Path, study: str) -> None:
    """Raise if this file exists and is no figure of this study; early figures name their records alone."""
    about = read_figure_metadata(picture)
    owner = about.get(OWNER, study)
    if owner != study:
        raise InputError(f"{picture} is a figure of {owner}, not of {study}: change --out or --results")
    if picture.exists() and not {OWNER, SOURCE} & about.keys():
        raise InputError(f"{picture} is not a figure of a study: change --out or --results")


def study_maps_name(picture: str) -> str:
    """The file of the attention maps, beside that of the curves."""
    return f"{picture.removesuffix('.png')}-maps.png"
