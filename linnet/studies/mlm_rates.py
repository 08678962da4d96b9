"""The learning rates of mlm_small: four for each main system, by validation perplexity after a short run."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from linnet.figures.table import Table
from linnet.registry import STUDY
from linnet.studies.ablation import SCORED, SMALL, ablation_budget, ablation_rows, norm_ablation_rows
from linnet.studies.perplexity import Perplexity
from linnet.studies.records import Record, mean_core_seconds
from linnet.studies.trained import Row, Scale

GRID = (1.5e-3, 3e-3, 6e-3, 1.2e-2)
SYSTEMS = ("T2", "vanilla", "1+elu", "NormAttention")


def _rows(name: str) -> tuple[Row, ...]:
    """The system at each rate."""
    row, _ = norm_ablation_rows() if name == "NormAttention" else ablation_rows(name, name)
    return tuple(row._replace(name=f"{name} at {rate:g}", sets=(*row.sets, f"train.lr={rate}")) for rate in GRID)


def best_rates(records: Sequence[Record]) -> dict[str, float]:
    """The rate of each system with the smallest validation perplexity."""
    found = _by_system(records)
    return {name: min(rates, key=lambda rate: rates[rate]) for name, rates in found.items()}


def _by_system(records: Sequence[Record]) -> Mapping[str, Mapping[float, float]]:
    """Validation perplexity by system and rate."""
    found: dict[str, dict[float, float]] = {}
    for record in records:
        rate = record["config"]["train"]["lr"]
        found.setdefault(record["row"].split(" at ")[0], {})[rate] = record["valid"]["perplexity"]
    return found


@STUDY.add("mlm-rates")
class MlmRates(Perplexity):
    """About a fifth of the steps of mlm_small, one seed; the schedule is cut to them."""

    title = "Learning rates of mlm_small"
    paper, item = "linnet", "mlm_small"
    core_hours = 0.48
    scales: ClassVar = {"cpu": Scale("mlm_small", "_roberta_small", (*SMALL, "train.steps=125", "train.warmup=25"))}
    scored_batches = SCORED
    rows = tuple(row for name in SYSTEMS for row in _rows(name))

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system, one column per rate, and the best."""
        found, best = _by_system(records), best_rates(records)
        rows = [
            [name, *(f"{found[name][rate]:.1f}" if rate in found[name] else "-" for rate in GRID), f"{best[name]:g}"]
            for name in SYSTEMS
            if name in found
        ]
        columns = ("valid perplexity at the rate", *(f"{rate:g}" for rate in GRID), "best")
        mean = mean_core_seconds(records)
        hours = len(records) * mean / 3600
        cost = f"The search: {len(records)} runs, {hours:.2f} core-hours, {mean:.0f} seconds per run."
        return [Table(self.title, columns, rows), f"{cost} {ablation_budget(records)}"]
