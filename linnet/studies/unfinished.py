"""Unfinished runs of a study: their progress, as a table and a figure."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from linnet.errors import LinnetError
from linnet.figures.figure import Figure, Series, save_figures
from linnet.figures.page import write_markdown_page
from linnet.figures.table import Table
from linnet.report.runs import SavedRun, read_report_runs, run_number
from linnet.storage import file_beside
from linnet.studies.base import OWNER, SOURCE, check_study_picture
from linnet.studies.records import records_sha256

UNFINISHED = "unfinished runs"  # owner of their figure; studies that share runs also share it

PANELS = {  # by the measure of a run: key of a record, title, factor, label of the axis
    "accuracy": (
        ("accuracy", "Accuracy so far", 100, "validation accuracy, %"),
        ("loss", "Loss so far", 1, "validation loss, nats"),  # it can fall while accuracy stands still
    ),
    "perplexity": (("perplexity", "Perplexity so far", 1, "validation perplexity"),),
}


def unfinished_runs(out: Path) -> list[SavedRun]:
    """The unfinished runs and pretrainings in the folders of `out`.

    A run has begun when a step of it is recorded, or when its pretraining has ended.
    """
    folders = sorted(path.parent for form in ("*", "*/pretrain") for path in out.glob(f"{form}/config.toml"))
    if not folders:
        return []
    runs = zip(read_report_runs(folders), folders, strict=True)
    named = [dataclasses.replace(run, name=str(folder.relative_to(out))) for run, folder in runs]
    for run, folder in zip(named, folders, strict=True):
        if not _planned_steps(run):
            raise LinnetError(f"{folder / 'config.toml'} is damaged: it does not say how many steps the run has")
    pretrained = {str(Path(run.name).parent) for run in named if Path(run.name).name == "pretrain" and _ended(run)}
    return [run for run in named if not _ended(run) and (unfinished_last_step(run) or run.name in pretrained)]


def unfinished_last_step(run: SavedRun) -> int:
    """The last recorded step."""
    return max((int(record["step"]) for record in run.train), default=0)


def _ended(run: SavedRun) -> bool:
    """Whether all steps and the evaluation after the last one are done."""
    return any(record["step"] >= _planned_steps(run) for record in run.valid)


def _planned_steps(run: SavedRun) -> int:
    """The number of steps at the end of the run."""
    return round(run_number(run.section("train").get("steps")) or 0)


def unfinished_table(runs: Sequence[SavedRun]) -> Table:
    """One line per run: its step, its best score, and the time it took."""
    heads, lines = ("run", "step", "of", "best on the validation split", "at step", "minutes"), []
    for run in runs:
        best, minutes = run.best(), (run.seconds() or 0.0) / 60
        score, step = ("-", "-") if best is None else (_score(run, best[1]), f"{best[0]:,}")
        lines.append(
            [run.name, f"{unfinished_last_step(run):,}", f"{_planned_steps(run):,}", score, step, f"{minutes:,.0f}"]
        )
    return Table("unfinished runs", heads, lines)


def _score(run: SavedRun, value: float) -> str:
    return f"{100 * value:.2f} %" if run.measure() == "accuracy" else f"perplexity {value:.2f}"


def unfinished_figures(runs: Sequence[SavedRun], note: str) -> list[Figure]:
    """Scores on the validation split against steps, in the panels of each measure; none before the first score."""
    figures = []
    for measure in sorted({run.measure() for run in runs if run.best()}):
        for key, title, factor, label in PANELS[measure]:
            series = []
            for run in (run for run in runs if run.measure() == measure):
                points = [(record["step"], run_number(record.get(key))) for record in run.valid]
                known = [(step, factor * y) for step, y in points if y is not None]
                if known:
                    series.append(Series(run.name, [step for step, _ in known], [y for _, y in known]))
            classes = {run_number(run.section("model").get("classes")) for run in runs} if key == "accuracy" else set()
            level = [("chance", factor / n) for n in classes if n and len(classes) == 1]  # of runs on one task
            figures.append(Figure(title, "step", label, series, note=note, levels=level))
    return figures


def unfinished_page(runs: Sequence[SavedRun], picture: str | None) -> str:
    """The part of the page between its markers."""
    shown = f"\n![measured on the validation split against steps]({picture})\n" if picture else ""
    return f"\n{unfinished_table(runs).to_markdown()}\n{shown}"


def render_unfinished(runs: Sequence[SavedRun], out: Path, title: str) -> tuple[Path, ...]:
    """Write the table into `<out>.md`, between its markers, and the figure into `<out>.png`; returns the files.

    Without runs there is neither; before the first evaluation there is no figure.
    """
    if not runs:
        return ()
    page, picture = file_beside(out, ".md"), file_beside(out, ".png")
    figures = unfinished_figures(runs, title)
    if figures:
        check_study_picture(picture, UNFINISHED)
    write_markdown_page(page, title, unfinished_page(runs, picture.name if figures else None))
    if not figures:
        return (page,)
    about = {SOURCE: records_sha256([dataclasses.asdict(run) for run in runs]), OWNER: UNFINISHED}
    save_figures(figures, picture, about)
    return page, picture
