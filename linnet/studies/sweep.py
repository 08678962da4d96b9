"""A study of a user's own: every combination of some settings of a recipe, each trained with several seeds."""

import hashlib
import itertools
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from linnet.config import config_recipe_path
from linnet.errors import InputError
from linnet.figures.figure import Figure
from linnet.figures.spread import spread_line, spread_text
from linnet.figures.table import Table
from linnet.studies.base import Report, Request
from linnet.studies.records import Record, mean_core_seconds, records_by_row
from linnet.studies.trained import Row, Scale, Trained

SCALE = "sweep"
MEASURES = ("accuracy", "perplexity", "loss")  # the first that a task reports decides


class Sweep(Trained):
    """The runs of a grid; the best combination is the one with the best mean on the validation split."""

    name, paper, item = "sweep", "your own", "grid"
    picture = "validation measure against steps"
    shared = "sweep"

    def __init__(self, recipe: str, grid: Sequence[str], sets: Sequence[str] = (), seeds: int = 1) -> None:
        self.recipe, self.sets = recipe, tuple(sets)
        self.grid = [_sweep_values(each) for each in grid]
        if not self.grid:
            raise InputError("--grid is missing: give at least one, such as --grid train.lr=1e-3,3e-3")
        combined = list(itertools.product(*([(key, value) for value in values] for key, values in self.grid)))
        named = [(", ".join(map("=".join, pairs)).replace("/", "_"), pairs) for pairs in combined]
        self.rows = [Row(name, None, tuple(map("=".join, pairs)), seeds, scales=(SCALE,)) for name, pairs in named]  # type: ignore[misc]
        if len({row.name for row in self.rows}) < len(self.rows):
            raise InputError(f"--grid is {', '.join(grid)}: a combination occurs twice")
        self.scales = {SCALE: Scale(recipe, sets=self.sets)}  # type: ignore[misc]
        self.title = f"Sweep of {recipe} over {' and '.join(key for key, _ in self.grid)}"  # type: ignore[misc]

    def command(self, scale: str) -> str:
        """The command that makes the records; more seeds belong to the same records."""
        grid = [f"--grid {key}={','.join(values)}" for key, values in self.grid]
        return " ".join(["linnet sweep", self.recipe, *grid, *(f"--set {each}" for each in self.sets)])

    def heading(self, scale: str) -> str:
        """The title of the page."""
        return self.title

    def folders(self, request: Request) -> tuple[Path, Path]:
        """Runs of one recipe and the same --set are shared by its sweeps; each grid has its own records."""
        other = f"-{_digest(self.sets)}" if self.sets else ""
        out = request.out or Path("runs") / f"sweep-{config_recipe_path(self.recipe).stem}{other}"
        return out, request.results or out / f"results-{_digest([self.command(SCALE)])}"

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per combination, the best first: mean and range over its seeds."""
        measure = _measure(records)
        heads = ("setting", "seeds", f"valid {measure}", f"test {measure}", "parameters", "seconds")
        lines = []
        for name, runs in self.best_first(records).items():
            valid, test = (spread_text([run[split][measure] for run in runs], 4) for split in ("valid", "test"))
            seconds = f"{mean_core_seconds(runs):,.0f}"
            lines.append([name, str(len(runs)), valid, test, f"{runs[0]['parameters']:,}", seconds])
        return [Table(self.title, heads, lines), f"Command: `{records[0]['command']}`. The range is over seeds."]

    def best_first(self, records: Sequence[Record]) -> dict[str, list[Record]]:
        """Records by combination, the best mean on the validation split first."""
        measure = _measure(records)
        sign = -1 if measure == "accuracy" else 1
        mean = {name: statistics.fmean(run["valid"][measure] for run in runs) for name, runs in _rows(records)}
        return dict(sorted(_rows(records), key=lambda row: (sign * mean[row[0]], row[0])))

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """The validation measure against steps, the mean over seeds, with the range shaded."""
        measure, series = _measure(records), []
        for name, runs in self.best_first(records).items():
            points: dict[float, list[float]] = {}
            for entry in (entry for run in runs for entry in run["curve"] if entry["split"] == "valid"):
                points.setdefault(entry["step"], []).append(entry[measure])
            series.append(spread_line(name, points))
        return [Figure(f"Validation {measure}", "step", measure, series, note=note)]

    def report(self, request: Request, out: Path, folder: Path, signal: int) -> Report:
        """The table so far, and the best combination as settings for `linnet train`."""
        found = super().report(request, out, folder, signal)
        records = self.read(folder) if any(folder.glob("*.json")) else []
        if not records:
            return found
        name, runs = next(iter(self.best_first(records).items()))
        measure = _measure(records)
        value = statistics.fmean(run["valid"][measure] for run in runs)
        sets = next(row.sets for row in self.rows if row.name == name)
        chosen = " ".join(f"--set {each}" for each in (*self.sets, *sets))
        line = f"best on the validation split: {name}, {measure} {value:.4f} (mean of {len(runs)}); {chosen}"
        best = {"setting": list(sets), "measure": measure, "valid": value, "seeds": len(runs)}
        return Report(f"{found.text}\n{line}", {**found.data, "best": best}, signal)


def _rows(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    return list(records_by_row(records).items())


def _measure(records: Sequence[Record]) -> str:
    """The measure that ranks the records of this task."""
    return next(measure for measure in MEASURES if measure in records[0]["valid"])


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]


def _sweep_values(text: str) -> tuple[str, list[str]]:
    """The key and the values of one --grid; a comma inside brackets or quotes does not separate values."""
    key, _, value = text.partition("=")
    values, depth, quoted = [""], 0, False
    for letter in value:
        quoted ^= letter == '"'
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quoted:
            values.append("")
        else:
            values[-1] += letter
    values = [each.strip() for each in values]
    if not key.strip() or not all(values):
        raise InputError(f"--grid is {text!r}: it must be a key and values, such as train.lr=1e-3,3e-3")
    return key.strip(), values
