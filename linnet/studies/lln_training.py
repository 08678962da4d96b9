"""LLN's figures during training: entropy, temperature and spectral gap of LLN beside softmax."""

import statistics
from collections.abc import Sequence

from linnet.figures.figure import Figure, Series
from linnet.figures.table import Table
from linnet.instruments.plots import BY_LAYER
from linnet.registry import STUDY
from linnet.studies.base import LLN
from linnet.studies.records import Record, records_by_row
from linnet.studies.systems import system
from linnet.studies.watched import Watched, masked_watched_row, watched_budget, watched_mean_text

READINGS = (  # column, instrument, value
    ("entropy, share of the largest", "entropy", "relative"),
    ("temperature", "temperature", "weights"),
    ("of q, k", "temperature", "qk"),
    ("spectral gap", "spectral_gap", "gap"),
    ("Var ln A along rows", "moment_matching", "variance"),
    ("of q, k", "moment_matching", "target"),
)


@STUDY.add("lln-training")
class LlnTraining(Watched):
    """Causal models, and masked ones for the gap, which a causal model does not have."""

    title = "Entropy, temperature and spectral gap along training: LLN beside softmax"
    paper, item = LLN, "Figure 1"
    picture = "entropy, temperature and gap against steps"
    core_hours = 0.5
    rows = (
        *map(system, ("vanilla", "lln", "lln_diag", "1+elu")),
        masked_watched_row(system("vanilla")),
        masked_watched_row(system("lln")),
    )
    instruments = ("entropy", "temperature", "spectral_gap", "moment_matching", "lognormal_fit")

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system."""
        rows = [
            [name, *(watched_mean_text(runs, instrument, value) for _, instrument, value in READINGS)]
            for name, runs in records_by_row(records).items()
        ]
        columns = ["system", *(column for column, _, _ in READINGS)]
        return [Table(self.title, columns, rows), f"Means over layers and heads, at the end. {watched_budget(records)}"]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """Each quantity against steps, the mean over seeds, layers and heads."""
        figures = []
        for title, label, instrument, value in BY_LAYER[:3]:  # entropy, temperature, gap
            series = []
            for name, runs in records_by_row(records).items():
                points: dict[int, list[float]] = {}
                for entry in (entry for run in runs for entry in run["curve"] if entry["split"] == "instruments"):
                    layers = entry["values"].get(instrument, {}).get(value, [])
                    numbers = [x for heads in layers for x in heads or [] if x is not None]
                    points.setdefault(entry["step"], []).extend(numbers)
                known = {step: ys for step, ys in points.items() if ys}
                series.append(Series(name, list(known), [statistics.fmean(ys) for ys in known.values()]))
            figures.append(Figure(title, "step", label, series, log_y=instrument == "temperature", note=note))
        return figures
