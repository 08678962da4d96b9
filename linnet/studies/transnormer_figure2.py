"""TransNormer's Figure 2: attention dilution, as locally accumulated scores and attention maps."""

import statistics
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from linnet.figures.figure import Figure, Series
from linnet.figures.heatmap import Grid, unpack_heatmap
from linnet.figures.table import Table
from linnet.instruments.local_score import local_area, local_score
from linnet.registry import STUDY
from linnet.studies.base import TRANSNORMER
from linnet.studies.claims import Claim, Comparison, claims_of_records
from linnet.studies.records import Record, records_by_row
from linnet.studies.systems import NORM_CONFOUND, system
from linnet.studies.trained import Row
from linnet.studies.watched import Watched, watched_budget, watched_local_area, watched_mean_text

COLUMNS = ("system", "local area", "first half of the layers", "second half", "entropy, share of the largest")
CLAIMS = (
    Comparison("Softmax attention is more local than 1+elu, which dilutes", "vanilla", "1+elu"),
    Comparison("TransNormer T2, as a whole, is more local than 1+elu", "T2", "1+elu"),
    Comparison("NormAttention is more local than 1+elu", "norm only", "1+elu", NORM_CONFOUND),
)


@STUDY.add("transnormer-figure2")
class Figure2(Watched):
    """How much of the sequence around a token collects a share of its attention."""

    title = "Attention dilution: locally accumulated scores and attention maps, as in TransNormer's Figure 2"
    paper, item = TRANSNORMER, "Figure 2"
    picture = "locally accumulated attention"
    core_hours: ClassVar[float | None] = 1.4
    rows: ClassVar[Sequence[Row]] = tuple(map(system, ("vanilla", "1+elu", "T1", "T2", "norm only")))
    instruments = ("local_score", "entropy")
    map_size = 64
    comparisons: ClassVar[Sequence[Comparison]] = CLAIMS

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system."""
        rows = []
        for name, runs in records_by_row(records).items():
            half = len(runs[0]["analysis"]["layers"]) // 2
            halves = (slice(None), slice(half), slice(half, None))
            areas = [watched_mean_text(runs, "local_score", "area", part) for part in halves]
            rows.append([name, *areas, watched_mean_text(runs, "entropy", "relative")])
        uniform = _uniform_area(records[0]["analysis"])
        note = f"A small area means local attention; uniform attention has {uniform:.2f}. {watched_budget(records)}"
        return [Table(self.title, COLUMNS, rows), note]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """The curve of each system, the mean over seeds, layers and heads."""
        series = []
        for name, runs in records_by_row(records).items():
            layers = [layer for run in runs for layer in run["analysis"]["layers"]]
            heads = [curve for layer in layers for curve in layer["values"]["local_score"]["curve"]]
            mean = [statistics.fmean(ys) for ys in zip(*heads, strict=True)]
            series.append(Series(name, [i / 99 for i in range(100)], mean))
        title = "Locally accumulated attention"
        return [Figure(title, "share of the attention", "share of the sequence", series, note=note)]

    def maps(self, records: Sequence[Record]) -> Grid:
        """The maps of the first and last layer, of each system's first seed; NaN where a query cannot look."""
        grid: list[tuple[str, dict[str, Any]]] = [("first layer", {}), ("last layer", {})]
        for name, (run, *_) in records_by_row(records).items():
            layers = run["analysis"]["layers"]
            for (_, maps), layer in zip(grid, (layers[0], layers[-1]), strict=True):
                if "map" in layer:
                    weights = unpack_heatmap(layer["map"])
                    seen = np.tri(len(weights)) if run["analysis"]["causal"] else np.ones_like(weights)
                    maps[f"{name}: {layer['name'].split()[-1]}"] = np.where(seen, weights, np.nan)
        return [(row, maps) for row, maps in grid if maps]

    def claims(self, records: Sequence[Record]) -> list[Claim]:
        """The claims that 1+elu dilutes attention, and that TransNormer restores locality."""
        return claims_of_records(self.comparisons, records, watched_local_area, digits=3)


def _uniform_area(analysis: Record) -> float:
    """The area of equal weights on all tokens that a query can see."""
    A = torch.ones(analysis["length"], analysis["length"], dtype=torch.float64)
    A = A.tril() if analysis["causal"] else A
    return float(local_area(local_score(A / A.sum(dim=-1, keepdim=True))))
