"""TransNormer's Table 2: how much gradients vary along training, by attention."""

import math
import statistics
from collections.abc import Sequence
from typing import ClassVar

from linnet.figures.figure import Figure, Series
from linnet.figures.table import Table
from linnet.instruments.gradient_deviation import gradient_deviation_of_records
from linnet.registry import STUDY
from linnet.studies.base import TRANSNORMER
from linnet.studies.claims import Claim, Comparison, claims_of_records
from linnet.studies.records import Record, records_by_row
from linnet.studies.systems import NORM_CONFOUND, system
from linnet.studies.trained import Row
from linnet.studies.watched import Watched, watched_budget

COLUMNS = ("system", "seeds", "gradient deviation", "smallest of a layer", "largest of a layer", "after warm-up")
CLAIMS = (
    Comparison("Gradients of softmax attention vary less than those of 1+elu", "vanilla", "1+elu"),
    Comparison("Gradients of NormAttention vary less than those of 1+elu", "norm only", "1+elu", NORM_CONFOUND),
    Comparison("Gradients of NormAttention vary less than those of softmax", "norm only", "vanilla", NORM_CONFOUND),
)


@STUDY.add("transnormer-table2")
class Table2(Watched):
    """The relative standard deviation of the gradient's norm over all updates."""

    title = "Relative standard deviation of gradients, as in TransNormer's Table 2"
    paper, item = TRANSNORMER, "Table 2"
    picture = "norm of the gradient against steps"
    core_hours: ClassVar[float | None] = 0.56
    rows: ClassVar[Sequence[Row]] = (
        system("vanilla"),
        system("1+elu"),
        Row("performer", "performer"),
        system("norm only"),
    )
    instruments = ("gradient_deviation",)
    comparisons: ClassVar[Sequence[Comparison]] = CLAIMS

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system, the largest deviation first."""
        rows = []
        for name, runs in records_by_row(records).items():
            found = [run["analysis"]["gradients"]["deviation"] for run in runs]
            layers = [x for run in found for x in run[1:]]
            whole, late = statistics.fmean(run[0] for run in found), statistics.fmean(map(table2_after_warmup, runs))
            numbers = (whole, min(layers), max(layers), late)
            rows.append((whole, [name, str(len(runs)), *(f"{x:.3f}" for x in numbers)]))
        table = Table(self.title, COLUMNS, [row for _, row in sorted(rows, key=lambda pair: -pair[0])])
        return [table, f"Read as {records[0]['analysis']['gradients']['reading']}. {watched_budget(records)}"]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """The norm of the gradient against steps, of each system's first seed."""
        series = []
        for name, runs in records_by_row(records).items():
            known = [entry for entry in runs[0]["curve"] if "grad_means" in entry]
            series.append(Series(name, [entry["step"] for entry in known], [entry["grad_means"][0] for entry in known]))
        return [Figure("Gradient norm", "step", "before clipping", series, log_y=True, note=note)]

    def claims(self, records: Sequence[Record]) -> list[Claim]:
        """The order of the paper's rows."""
        return claims_of_records(self.comparisons, records, _deviation, digits=3)


def _deviation(run: Record) -> float:
    """The deviation over all updates, of all parameters together."""
    return float(run["analysis"]["gradients"]["deviation"][0])


def table2_after_warmup(run: Record) -> float:
    """The deviation over the updates after the warm-up alone."""
    late = [entry for entry in run["curve"] if entry["step"] > run["config"]["train"]["warmup"]]
    found = gradient_deviation_of_records(late)
    return math.nan if found is None else float(found[0])
