"""enwik8 by bytes: the main systems on a second corpus, so that their order does not rest on WikiText-2 alone."""

import math
from collections.abc import Sequence
from typing import ClassVar

from linnet.figures.spread import spread_text
from linnet.figures.table import Table
from linnet.registry import STUDY
from linnet.studies.base import TRANSNORMER
from linnet.studies.claims import Claim, Comparison, claims_of_records
from linnet.studies.perplexity import Perplexity
from linnet.studies.records import Record, mean_core_seconds, record_versions, records_by_row
from linnet.studies.systems import LRPE, system, t2_frame_of_systems
from linnet.studies.trained import Row, Scale

T2, VANILLA, ELU, FRAMED = "T2", "vanilla", "1+elu", "vanilla in the T2 frame"
COLUMNS = ("system", "parameters", "seeds", "valid bits per byte", "test bits per byte", "seconds")
SHORT = ("train.steps=500", "train.warmup=50", "train.eval_every=100")  # as many bytes as Table 4 has tokens there
PAPER = ("data.context=512", "train.steps=100000", "train.batch=8", "train.accumulate=16", "train.lr=5e-4")
COMPARISONS = (
    Comparison("T2 needs fewer bits than the vanilla transformer", T2, VANILLA),
    Comparison("T2 needs fewer bits than 1+elu attention", T2, ELU),
    Comparison("T2's attention alone, in the same frame, needs fewer bits than softmax", T2, FRAMED),
)


@STUDY.add("enwik8")
class Enwik8(Perplexity):
    """Bits per byte; the `paper` scale has the model and the budget of TransNormer's causal language models."""

    title = "Causal language modeling on enwik8, by bytes"
    paper, item = TRANSNORMER, "Table 4 on another corpus"
    scales: ClassVar = {
        "cpu": Scale("enwik8", "_lm_small", SHORT),
        "paper": Scale("enwik8", "_lm", (*PAPER, "train.warmup=8000", "train.schedule=inverse_sqrt")),
    }
    scored_batches = 100
    rows = (
        system(T2, seeds=3),
        system(VANILLA, seeds=3),
        *(
            Row(FRAMED, "vanilla", (LRPE, *t2_frame_of_systems(ending)), seeds=3, scales=(scale,))
            for scale, ending in (("cpu", "_lm_small"), ("paper", "_lm"))
        ),
        system(ELU, seeds=3),
        system("lln_diag"),
    )

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system."""
        found, rows = records_by_row(records), []
        for name in (name for name in dict.fromkeys(row.name for row in self.rows) if name in found):
            runs = found[name]
            bits = [spread_text([_bits(run, split) for run in runs], 3) for split in ("valid", "test")]
            seconds = f"{mean_core_seconds(runs):,.0f}"
            rows.append([name, f"{runs[0]['parameters']:,}", str(len(runs)), *bits, seconds])
        first = records[0]
        train = first["config"]["train"]
        about = (
            f"Each run: {first['tokens']:,} bytes, {train['steps']} steps of {train['batch']} blocks of "
            f"{first['config']['data']['context']}, learning rate {train['lr']:g}, "
            f"{record_versions(first['environment'])}. The range is over seeds. Command: `{first['command']}`."
        )
        return [Table(self.title, COLUMNS, rows), about]

    def claims(self, records: Sequence[Record]) -> list[Claim]:
        """The order of the paper's rows."""
        return claims_of_records(COMPARISONS, records, lambda run: _bits(run, "test"), digits=3)


def _bits(run: Record, split: str) -> float:
    """Bits per byte: each token is a byte, apart from the last, which ends the split."""
    return float(run[split]["loss"]) / math.log(2)
