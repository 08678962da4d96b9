"""Committed results as a table and a figure: what `docs/results` shows is rendered from JSON, never typed."""

import contextlib
import hashlib
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from linnet.errors import InputError, LinnetError
from linnet.figures.figure import Figure, Series, save_figures
from linnet.figures.heatmap import save_maps
from linnet.figures.page import write_page
from linnet.storage import beside, read_json
from linnet.studies import lra_pages as arena
from linnet.studies.evidence import EVIDENCE, Evidence
from linnet.studies.recall import recall_figures, recall_markdown

Record = dict[str, Any]
# What the records of a folder hold at least: trained, measured, computed.
KINDS = (
    {"row", "seed", "config", "test", "curve", "environment", "command"},
    {"tokens", "rows", "batch", "others", "environment", "command"},
    {"study", "settings", "command"},
)


def read_results(folder: Path) -> list[Record]:
    """The records of a folder; none, or one that is damaged or of another kind, is a one-line error."""
    records, kinds = [], set()
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text())
        except ValueError as error:
            raise LinnetError(f"{path} is not a result of a study: {error}") from None
        kind = next((i for i, keys in enumerate(KINDS) if isinstance(record, dict) and keys <= record.keys()), None)
        if kind is None:
            raise LinnetError(f"{path} is not a result of a study: it lacks what every result has")
        records.append(record)
        kinds.add(kind)
    if not records:
        raise InputError(f"{folder} holds no results: run the study first")
    if len(kinds) > 1:
        raise InputError(f"{folder} holds results of several kinds: each study needs a folder of its own")
    return records


@contextlib.contextmanager
def one_line_damage(*places: Path) -> Iterator[None]:
    """Inside, a record in which something is missing or of another type is a one-line error that names the places."""
    try:
        yield
    except LinnetError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise LinnetError(f"{' or '.join(map(str, places))} is damaged: {what}") from None


def check_records(folder: Path, records: Sequence[Record]) -> None:
    """The one-line error for records that cannot be shown, each alone and all together, before anything is written."""
    single = [(path, [record]) for path, record in zip(sorted(folder.glob("*.json")), records, strict=True)]
    for path, shown in (*single, (folder, records)):
        with one_line_damage(path):
            view(shown).table(shown)
            view(shown).figures(shown, "")
            view(shown).maps(shown)


def check_origin(folder: Path, command: str) -> None:
    """The one-line error for a folder with results of another command, told before the work that would join them."""
    for path in sorted(folder.glob("*.json")):
        record = read_json(path)
        made_by = record.get("command") if isinstance(record, dict) else None
        if made_by != command:
            of = f"of `{made_by}`" if made_by else "no result of a study"
            raise InputError(f"{path} is {of}, not of `{command}`: name another folder by --results")


def by_row(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records grouped by row, the best test loss first."""
    rows: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record["seed"]):
        rows.setdefault(record["row"], []).append(record)
    return dict(sorted(rows.items(), key=lambda item: statistics.fmean(r["test"]["loss"] for r in item[1])))


def to_markdown(records: Sequence[Record]) -> str:
    """The table of a study."""
    return view(records).table(records)


def perplexity_table(records: Sequence[Record]) -> str:
    """One line a system, the mean over its seeds and, where there are several, their range."""
    rows = by_row(records)
    lines = [
        "| system | parameters | seeds | valid perplexity | test perplexity | test perplexity by word | seconds |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for row, runs in rows.items():
        cells = [
            row,
            f"{runs[0]['parameters']:,}",
            str(len(runs)),
            _spread([run["valid"]["perplexity"] for run in runs]),
            _spread([run["test"]["perplexity"] for run in runs]),
            _spread([run["test"]["word_perplexity"] for run in runs if "word_perplexity" in run["test"]]),
            f"{statistics.fmean(run['seconds'] for run in runs):,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _budget(records)])


def _spread(values: Sequence[float]) -> str:
    """A mean, and the range of several values."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f})"


def _budget(records: Sequence[Record]) -> str:
    """What was spent, on what, and how to do it again; refused where the runs did not get the same."""
    budgets = {(r["tokens"], r["config"]["data"]["context"], r["environment"]["threads"]) for r in records}
    if len(budgets) != 1:
        raise LinnetError(f"the runs had different budgets: {sorted(budgets)}")
    ((tokens, context, threads),) = budgets
    first = records[0]
    versions = f"linnet {first['environment']['linnet']}, torch {first['environment']['torch']}"
    settings = first["config"]["train"]
    return (
        f"Each run: {tokens:,} tokens in blocks of {context}, {settings['steps']} steps of {settings['batch']} blocks, "
        f"learning rate {settings['lr']:g}, {threads} thread, {versions}. The range is over seeds. Seconds were taken "
        f"on a machine with other work and compare nothing. Command: `{first['command']}`."
    )


def view(records: Sequence[Record]) -> Evidence:
    """How the records of a study are shown, by what they hold."""
    if all("rows" in record for record in records):
        return VIEWS["speed"]
    if records[0].get("study") in EVIDENCE:
        return EVIDENCE[records[0]["study"]]
    task = str(records[0]["config"]["task"])
    return VIEWS["arena" if task.startswith("lra/") else "recall" if task == "recall" else "perplexity"]


def curves(records: Sequence[Record], note: str) -> list[Figure]:
    """Validation perplexity against tokens, the mean over seeds, with the range shaded."""
    series = []
    for row, runs in by_row(records).items():
        found: dict[float, list[float]] = {}
        for run in runs:
            tokens = {entry["step"]: entry["tokens"] for entry in run["curve"] if entry["split"] == "train"}
            for entry in run["curve"]:
                if entry["split"] == "valid":
                    found.setdefault(tokens[entry["step"]] / 1e6, []).append(entry["perplexity"])
        x = sorted(found)
        low, high = ([pick(found[t]) for t in x] for pick in (min, max))
        mean = [statistics.fmean(found[t]) for t in x]
        series.append(Series(row, x, mean, *((low, high) if len(runs) > 1 else (None, None))))
    return [Figure("Validation perplexity", "million tokens", "per token", series, log_y=True, note=note)]


VIEWS = {
    "speed": Evidence("steps a second against tokens", arena.speed_table, arena.speed_curves),
    "arena": Evidence("validation accuracy against steps", arena.accuracy_table, arena.accuracy_curves),
    "recall": Evidence("accuracy against the number of pairs", recall_markdown, recall_figures),
    "perplexity": Evidence("validation perplexity against tokens", perplexity_table, curves),
}


def render(folder: Path, title: str) -> tuple[Path, ...]:
    """Write the table into `<folder>.md`, between its markers, and the curves into `<folder>.png`; the files.

    Where the records hold attention maps, these are a third file, `<folder>-maps.png`.
    """
    records = read_results(folder)
    check_records(folder, records)
    page, picture = beside(folder, ".md"), beside(folder, ".png")
    write_page(page, title, rendered(records, picture.name))
    drawn_from = {"linnet-results": digest(records)}
    save_figures(view(records).figures(records, title), picture, drawn_from)
    grid = view(records).maps(records)
    if not grid:
        return page, picture
    maps = picture.with_name(maps_name(picture.name))
    save_maps(grid, maps, records[0]["analysis"]["length"], "absolute values, mean over heads", drawn_from)
    return page, picture, maps


def maps_name(picture: str) -> str:
    """The file of the attention maps beside that of the curves."""
    return f"{picture.removesuffix('.png')}-maps.png"


def rendered(records: Sequence[Record], picture: str) -> str:
    """What stands between the markers of a page."""
    rows = [row for row, _ in view(records).maps(records)]
    maps = f"\n![attention maps: {' and '.join(rows)}]({maps_name(picture)})\n" if rows else ""
    return f"\n{to_markdown(records)}\n\n![{view(records).what}]({picture})\n{maps}"


def digest(records: Sequence[Record]) -> str:
    """SHA-256 of the records, by which a picture is known to be drawn from them."""
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()
