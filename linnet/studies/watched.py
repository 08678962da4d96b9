"""Small language models that several studies share: their attention and gradients are recorded during training."""

import statistics
from collections.abc import Sequence
from typing import Any, ClassVar

from linnet.figures.heatmap import pack_heatmap
from linnet.instruments.analyze import analysis_by_head, analyze_views
from linnet.instruments.attention_map import pooled_attention_map
from linnet.instruments.base import instrument_views_of_model
from linnet.studies.records import Record, record_versions
from linnet.studies.systems import SHORT
from linnet.studies.trained import Row, Scale, Trained
from linnet.train.run import Run
from linnet.train.watch import watch_blocks

WATCHED = (  # more and smaller updates than in other studies, with instruments during training
    *SHORT,
    "train.steps=600",
    "train.batch=8",
    "train.warmup=60",
    'train.instruments=["entropy", "temperature"]',
    "train.instrument_every=50",
)
PAPER = (  # models without a causal mask, which have a spectral gap
    'train.instruments=["entropy", "temperature", "spectral_gap"]',
    "train.instrument_every=1000",
)
BLOCKS = 4  # of the validation split, for the instruments


class Watched(Trained):
    """A study of attention and gradients."""

    scales: ClassVar = {
        "cpu": Scale("wikitext2", "_lm_small", WATCHED),
        "paper": Scale("transnormer_roberta", "_roberta", PAPER),
    }
    shared = "watched"
    instruments: ClassVar[tuple[str, ...]]  # measured at the end of a run and kept in its record
    map_size: ClassVar[int] = 0  # rows of the attention maps of the first and last layer in the record; 0: no maps

    def readings(self, run: Run, metrics: list[dict[str, Any]]) -> Record:
        """The numbers of the instruments on the validation split, and the maps of its first block."""
        views = instrument_views_of_model(run.load(), watch_blocks(run.task, BLOCKS))
        found = analyze_views(views, self.instruments, records=metrics)
        for i in (0, -1) if self.map_size else ():
            heads = pooled_attention_map(views[i], self.map_size, signed=False)[
                0
            ]  # signs would cancel in the mean over heads
            found["layers"][i]["map"] = pack_heatmap(heads.mean(dim=0).numpy())
        return {"analysis": found}

    def about_maps(self, records: Sequence[Record]) -> tuple[int, str]:
        """The length of a validation block, and how `readings` made the maps."""
        return records[0]["analysis"]["length"], "absolute values, mean over heads"


def watched_local_area(run: Record) -> float:
    """The mean area of the local scores of a record over layers and heads."""
    return statistics.fmean(watched_head_readings(run, "local_score", "area"))


def masked_watched_row(row: Row) -> Row:
    """The same system as a masked model, which has a spectral gap; everything else is as in the causal ones."""
    sets = (*row.sets, "model.causal=false", "model.output=masked_lm", "model.init=xavier")
    gap = 'train.instruments=["entropy", "temperature", "spectral_gap"]'
    return Row(f"{row.name}, masked", row.preset, (*sets, gap), recipe="wikitext2_mlm", scales=("cpu",))


def watched_head_readings(run: Record, instrument: str, value: str, part: slice = slice(None)) -> list[float]:
    """A reading of each head in some layers of a run; none if the instrument refused."""
    return [x for layer in run["analysis"]["layers"][part] for x in analysis_by_head(layer, instrument, value)]


def watched_mean_text(runs: Sequence[Record], instrument: str, value: str, part: slice = slice(None)) -> str:
    """The mean of a reading over runs, layers and heads, as a cell; "-" if there is none."""
    found = [x for run in runs for x in watched_head_readings(run, instrument, value, part)]
    return f"{statistics.fmean(found):.3g}" if found else "-"


def watched_budget(records: Sequence[Record]) -> str:
    """The settings of the runs, and the command."""
    first = records[0]
    train = first["config"]["train"]
    return (
        f"Each run: {train['steps']} steps of {train['batch']} blocks of {first['config']['data']['context']} tokens, "
        f"read on the validation split; {record_versions(first['environment'])}. Command: `{first['command']}`."
    )
