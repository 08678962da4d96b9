"""The learning rates behind TransNormer's Table 4: four for each of five systems, by validation perplexity."""

from collections.abc import Sequence
from typing import ClassVar

from linnet.figures.table import Table
from linnet.registry import STUDY
from linnet.studies.base import TRANSNORMER
from linnet.studies.perplexity import Perplexity
from linnet.studies.records import Record, record_versions, records_by_row
from linnet.studies.systems import LRPE, SHORT, system, t2_frame_of_systems
from linnet.studies.trained import Row, Scale

FRAMED = "vanilla in the T2 frame"
SYSTEMS = ("T2", "vanilla", FRAMED, "1+elu", "Performer")
FACTORS = (0.25, 0.5, 1.0, 2.0)  # of the recipe's rate at each scale
RATES = {"cpu": [2e-3 * factor for factor in FACTORS], "paper": [5e-4 * factor for factor in FACTORS]}
ENDINGS = {"cpu": "_lm_small", "paper": "_lm"}


def _row(name: str, scale: str, rate: float) -> Row:
    framed = (LRPE, *t2_frame_of_systems(ENDINGS[scale])) if name == FRAMED else ()
    preset = "vanilla" if name == FRAMED else system(name).preset
    sets = (*framed, f"train.lr={rate}", *(("train.min_lr=0.0",) if scale == "cpu" else ()))
    return Row(f"{name} at {rate:g}", preset, sets, scales=(scale,))


@STUDY.add("transnormer-table4-rates")
class Table4Rates(Perplexity):
    """The rows of Table 4 that claims rest on, each at half, twice and a quarter of the rate of the table."""

    title = "Learning rates of causal language models: five systems of TransNormer's Table 4"
    paper, item = TRANSNORMER, "Table 4"
    scales: ClassVar = {"cpu": Scale("wikitext2", "_lm_small", SHORT), "paper": Scale("transnormer_lm", "_lm")}
    rows = tuple(_row(name, scale, rate) for scale, rates in RATES.items() for rate in rates for name in SYSTEMS)

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system, one column per rate."""
        first, found = records[0], records_by_row(records)
        rates = RATES[first.get("scale", "cpu")]
        rows = []
        for name in SYSTEMS:
            cells = [found.get(f"{name} at {rate:g}") for rate in rates]
            rows.append([name, *(f"{cell[0]['valid']['perplexity']:.2f}" if cell else "-" for cell in cells)])
        table = Table(self.title, ["valid perplexity at the rate", *(f"{rate:g}" for rate in rates)], rows)
        about = f"Each run: {first['tokens']:,} tokens, one seed, {record_versions(first['environment'])}."
        return [table, f"{about} Command: `{first['command']}`."]
