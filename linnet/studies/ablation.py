"""Ablations of TransNormer: masked models that several studies share, and rows that change one thing about a system."""

import json
from collections.abc import Callable, Sequence
from typing import ClassVar

from linnet.figures.spread import spread_text
from linnet.figures.table import Table
from linnet.models.presets import GATED
from linnet.studies.base import TRANSNORMER
from linnet.studies.claims import Claim, Comparison, claims_of_records
from linnet.studies.perplexity import Perplexity, perplexity_of_test
from linnet.studies.records import Record, mean_core_seconds, record_versions, records_by_row
from linnet.studies.systems import SYSTEMS
from linnet.studies.trained import Row, Scale

LAYERS = {"cpu": 4, "paper": 12}
WIDTHS = {"cpu": {"glu": 170, "ffn": 256}, "paper": {"glu": 2048, "ffn": 3072}}  # of equal numbers of parameters
# Chosen by the study mlm-rates; a system that is not in it uses the rate of the most similar one.
RATES = {"T2": 6e-3, "T1": 6e-3, "vanilla": 6e-3, "1+elu": 6e-3, "NormAttention": 3e-3}
RATES |= {"Performer": RATES["vanilla"], "NormAttention with LRPE": RATES["NormAttention"]}
SMALL = ("model.options.diag.dropout=0.0", "model.options.softmax.dropout=0.0")  # no token is seen twice
SCALES = {"cpu": Scale("mlm_small", "_roberta_small", SMALL), "paper": Scale("transnormer_roberta", "_roberta")}
SHARED, SCORED = "ablations", 25  # the folder of the runs; batches that score a run, the same for all
COLUMNS = ("system", "parameters", "seeds", "learning rate", "valid perplexity", "test perplexity", "seconds")

Layers = Callable[[int], Sequence[str]]  # from a number of layers to their mechanisms


def halved_ablation(first: str, second: str) -> Layers:
    """One mechanism in the first half of the layers, another in the second."""
    return lambda L: [first] * (L // 2) + [second] * (L - L // 2)


def uniform_ablation(layer: str) -> Layers:
    """The same in every layer."""
    return lambda L: [layer] * L


def ablation_rows(
    name: str, like: str, layers: Layers | None = None, sets: Sequence[str] = (), ffn: str = "", seeds: int = 1
) -> tuple[Row, ...]:
    """A variant of the system `like`, one row per scale: other layers, another FFN ("glu" or "ffn"), or other settings.

    At the CPU scale it has the learning rate of `like`, and an FFN of that scale's width.
    """
    preset = SYSTEMS[like]
    found = []
    for scale, L in LAYERS.items():
        kind = ffn or ("glu" if preset in GATED else "ffn")
        width = (f"model.ffn_width={WIDTHS[scale][kind]}",) if ffn or scale == "cpu" else ()
        gate = (f"model.ffn={ffn}", f"model.activation={'silu' if ffn == 'glu' else 'gelu'}") if ffn else ()
        rate = (f"train.lr={RATES.get(name, RATES[like])}",) if scale == "cpu" else ()
        own = (f"model.layers={json.dumps(layers(L))}",) if layers else ()
        found.append(Row(name, preset, (*rate, *width, *gate, *own, *sets), seeds, scales=(scale,)))
    return tuple(found)


def norm_ablation_rows(seeds: int = 1) -> tuple[Row, ...]:
    """NormAttention without relative positions in the frame of 1+elu, so that only the attention differs."""
    plain = ("model.options.norm.positions=none",)
    return ablation_rows("NormAttention", "1+elu", uniform_ablation("norm"), plain, seeds=seeds)


class Ablation(Perplexity):
    """Masked models that differ in one thing; the rows are in the order of the paper's table."""

    paper = TRANSNORMER
    scales: ClassVar = SCALES
    shared = SHARED
    scored_batches = SCORED
    comparisons: ClassVar[Sequence[Comparison]] = ()

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system: the mean over its seeds and, if there are several, the range."""
        found, rows = records_by_row(records), []
        for name in dict.fromkeys(row.name for row in self.rows):
            runs = found.get(name, [])
            if not runs:
                rows.append([name, *(["not run"] + ["-"] * (len(COLUMNS) - 2))])
                continue
            valid, test = ([run[split]["perplexity"] for run in runs] for split in ("valid", "test"))
            rate, seconds = runs[0]["config"]["train"]["lr"], mean_core_seconds(runs)
            cells = (f"{runs[0]['parameters']:,}", str(len(runs)), f"{rate:g}", spread_text(valid), spread_text(test))
            rows.append([name, *cells, f"{seconds:,.0f}"])
        return [Table(self.title, COLUMNS, rows), ablation_budget(records)]

    def claims(self, records: Sequence[Record]) -> list[Claim]:
        """The order of the paper's rows."""
        return claims_of_records(self.comparisons, records, perplexity_of_test)


def ablation_budget(records: Sequence[Record]) -> str:
    """The budget of a run, how it was scored, and the command."""
    first = records[0]
    train, data = first["config"]["train"], first["config"]["data"]
    return (
        f"Perplexity per masked token, on {first['test']['tokens']:,} of the test split, the same in all rows. "
        f"Each run: {first['tokens']:,} tokens, {train['steps']} steps of {train['batch']} blocks of "
        f"{data['context']}, {first['environment']['threads']} thread, {record_versions(first['environment'])}. "
        "The range is over seeds. Times were taken on a busy machine; do not compare them. "
        f"Command: `{first['command']}`."
    )
