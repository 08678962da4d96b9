"""Why a small masked model stays on the plateau of token frequencies: RoBERTa's frame with one change at a time."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from linnet.figures.table import Table
from linnet.registry import STUDY
from linnet.studies.ablation import SCORED, SMALL, WIDTHS, ablation_budget
from linnet.studies.perplexity import Perplexity
from linnet.studies.records import Record, mean_core_seconds, records_by_row
from linnet.studies.trained import Row, Scale
from linnet.tasks.text import TextTask
from linnet.train.run import Run

ROBERTA = (
    *("model.positions=learned", "model.embedding_scale=false", "model.embedding_norm=true", "model.init=bert"),
    *("model.norm_position=post", "model.final_norm=false"),
)
CHANGES = {  # of vanilla in the frame of RoBERTa; all but the first make the frame of mlm_small
    "LRPE": ("model.options.softmax.positions=lrpe",),
    "sinusoidal positions": ("model.positions=sinusoidal", "model.embedding_scale=true", "model.embedding_norm=false"),
    "norm before branches": ("model.norm_position=pre", "model.final_norm=true"),
    "Xavier init": ("model.init=xavier",),
}
MLM_SMALL = tuple(change for name in list(CHANGES)[1:] for change in CHANGES[name])
PRESETS = {"T2": "transnormer_t2", "vanilla": "vanilla", "1+elu": "elu"}
COLUMNS = ("system", "at step 100", "at the end", "share of the plateau", "seconds")


def _row(name: str, like: str = "vanilla", sets: Sequence[str] = ()) -> Row:
    ffn = WIDTHS["cpu"]["glu" if like == "T2" else "ffn"]
    return Row(name, PRESETS[like], (f"model.ffn_width={ffn}", *ROBERTA, *sets))


@STUDY.add("mlm-plateau")
class MlmPlateau(Perplexity):
    """Short runs at a rate of 0.003: which change lets vanilla leave the plateau, beside T2 and 1+elu."""

    title = "The plateau of masked language models"
    paper, item = "linnet", "mlm_small"
    core_hours = 0.4
    scales: ClassVar = {
        "cpu": Scale("mlm_small", "_roberta_small", (*SMALL, "train.steps=200", "train.warmup=40", "train.lr=3e-3"))
    }
    scored_batches = SCORED
    rows = (
        *(_row(f"{name} at 0.001", name, ("train.lr=1e-3",)) for name in PRESETS),
        *(_row(name, name) for name in PRESETS),
        *(_row(f"vanilla, {name}", sets=sets) for name, sets in list(CHANGES.items())[:2]),
        _row("vanilla, all but LRPE", sets=MLM_SMALL),
        *(_row(f"vanilla, {name}", sets=sets) for name, sets in list(CHANGES.items())[2:]),
    )

    def readings(self, run: Run, metrics: list[dict[str, Any]]) -> Record:
        """The perplexity of guessing each token of the validation split by its frequency in the training split."""
        assert isinstance(run.task, TextTask)
        size = run.task.tokenizer.vocab_size
        train, valid = (np.bincount(run.task.streams[split].tokens, minlength=size) for split in ("train", "valid"))
        share = (train + 1) / (train + 1).sum()  # add one, so that no token has a share of 0
        return {"plateau": math.exp(-float((valid * np.log(share)).sum() / valid.sum()))}

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """Validation perplexity at step 100 and at the end, in the order of the rows."""
        found = records_by_row(records)
        rows = []
        for name in (row.name for row in self.rows if row.name in found):
            (run,) = found[name]
            early = next(e["perplexity"] for e in run["curve"] if e["split"] == "valid" and e["step"] == 100)
            end = run["valid"]["perplexity"]
            share, seconds = end / run["plateau"], mean_core_seconds([run])
            rows.append([name, f"{early:.0f}", f"{end:.0f}", f"{share:.2f}", f"{seconds:,.0f}"])
        about = f"Validation perplexity; guessing by frequency, the plateau, has {records[0]['plateau']:.0f}."
        return [Table(self.title, COLUMNS, rows), f"{about} {ablation_budget(records)}"]
