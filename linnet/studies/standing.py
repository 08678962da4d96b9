"""Runs of a study that are not at their end: how far they are, as a table and a figure."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from linnet.errors import LinnetError
from linnet.figures.figure import Figure, Series, save_figures
from linnet.figures.page import write_page
from linnet.report.runs import Run, number, read_runs
from linnet.storage import beside
from linnet.studies.results import digest

PANELS = {  # by what runs are judged by: key of a record, title, factor, and what the axis says
    "accuracy": (
        ("accuracy", "Accuracy so far", 100, "validation accuracy, %"),
        ("loss", "Loss so far", 1, "validation loss, nats"),  # it falls where accuracy stands still
    ),
    "perplexity": (("perplexity", "Perplexity so far", 1, "validation perplexity"),),
}


def unfinished(out: Path) -> list[Run]:
    """The runs in the folders of `out`, and the pretraining of runs, that have begun and are not at their end.

    A run has begun when a step of it is written down, or when its pretraining is at its end.
    """
    folders = sorted(path.parent for form in ("*", "*/pretrain") for path in out.glob(f"{form}/config.toml"))
    if not folders:
        return []
    runs = zip(read_runs(folders), folders, strict=True)
    named = [dataclasses.replace(run, name=str(folder.relative_to(out))) for run, folder in runs]
    for run, folder in zip(named, folders, strict=True):
        if not planned(run):
            raise LinnetError(f"{folder / 'config.toml'} is damaged: it does not say how many steps the run is to have")
    pretrained = {str(Path(run.name).parent) for run in named if Path(run.name).name == "pretrain" and _ended(run)}
    return [run for run in named if not _ended(run) and (at(run) or run.name in pretrained)]


def at(run: Run) -> int:
    """The last step that is written down."""
    return max((int(record["step"]) for record in run.train), default=0)


def _ended(run: Run) -> bool:
    """Whether all steps are done, and the evaluation after the last."""
    return any(record["step"] >= planned(run) for record in run.valid)


def planned(run: Run) -> int:
    """All the steps that the run is to have."""
    return round(number(run.section("train").get("steps")) or 0)


def standing_table(runs: Sequence[Run]) -> str:
    """One line a run: how far it is, what it has learned, and in how much time."""
    heads = ("run", "step", "of", "best on the validation split", "at step", "minutes")
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' --: |' * (len(heads) - 1)}"]
    for run in runs:
        best, minutes = run.best(), (run.seconds() or 0.0) / 60
        score, step = ("-", "-") if best is None else (_score(run, best[1]), f"{best[0]:,}")
        lines.append(f"| {run.name} | {at(run):,} | {planned(run):,} | {score} | {step} | {minutes:,.0f} |")
    return "\n".join(lines)


def _score(run: Run, value: float) -> str:
    return f"{100 * value:.2f} %" if run.measure() == "accuracy" else f"perplexity {value:.2f}"


def standing_figures(runs: Sequence[Run], note: str) -> list[Figure]:
    """What was measured on the validation split against steps, in the panels of each measure; none before the first."""
    figures = []
    for measure in sorted({run.measure() for run in runs if run.best()}):
        for key, title, factor, label in PANELS[measure]:
            series = []
            for run in (run for run in runs if run.measure() == measure):
                points = [(record["step"], number(record.get(key))) for record in run.valid]
                known = [(step, factor * y) for step, y in points if y is not None]
                if known:
                    series.append(Series(run.name, [step for step, _ in known], [y for _, y in known]))
            figures.append(Figure(title, "step", label, series, note=note))
    return figures


def rendered_standing(runs: Sequence[Run], picture: str | None) -> str:
    """What stands between the markers of a page."""
    shown = f"\n![measured on the validation split against steps]({picture})\n" if picture else ""
    return f"\n{standing_table(runs)}\n{shown}"


def render_standing(runs: Sequence[Run], out: Path, title: str) -> tuple[Path, ...]:
    """Write the table into `<out>.md`, between its markers, and the figure into `<out>.png`; the files.

    Before the first evaluation there is no figure.
    """
    page, picture = beside(out, ".md"), beside(out, ".png")
    figures = standing_figures(runs, title)
    write_page(page, title, rendered_standing(runs, picture.name if figures else None))
    if not figures:
        return (page,)
    save_figures(figures, picture, {"linnet-results": digest([dataclasses.asdict(run) for run in runs])})
    return page, picture
