"""Attribution: what the attention, its positions and the frame around it contribute, measured in all combinations."""

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import ClassVar

from linnet.figures.figure import Figure
from linnet.figures.spread import spread, spread_line, spread_text
from linnet.figures.table import Table
from linnet.models.presets import SIZES
from linnet.registry import STUDY
from linnet.studies.ablation import WIDTHS
from linnet.studies.records import Record, record_versions
from linnet.studies.trained import Row, Scale, Trained

FACTORS = {  # the first level of each factor is the baseline
    "attention": ("softmax", "elu", "norm", "lln"),
    "positions": ("none", "lrpe"),
    "frame": ("vanilla", "T2"),
}
CELLS = list(itertools.product(*FACTORS.values()))
PLACES = list(itertools.product(FACTORS["positions"], FACTORS["frame"]))
SMALL = (  # the size and the budget of mlm_small, with text read from left to right
    *("data.vocab_size=1024", "model.width=64", "model.dropout=0.0", "train.steps=500", "train.batch=8"),
    *("train.warmup=50", "train.eval_every=100", "train.eval_batches=10", "train.save_every=250", "train.threads=1"),
)
GATED = ("model.norm=srms", "model.ffn=glu", "model.activation=silu", "model.ffn_width=85")  # recall in T2's frame
TASKS = {"causal_lm": ("test perplexity", "log perplexity"), "recall": ("right answers, %", "right answers, %")}

Cell = tuple[str, ...]  # a level of each factor


def _name(cell: Cell) -> str:
    attention, positions, frame = cell
    return f"{attention}, {positions}, {frame} frame"


def _language_model(cell: Cell, scale: str) -> Row:
    """The cell as a causal language model; T2's frame is that of the preset `norm`."""
    attention, positions, frame = cell
    kind = "glu" if frame == "T2" else "ffn"
    own = (*SMALL, f"model.ffn_width={WIDTHS['cpu'][kind]}") if scale == "cpu" else ()
    layers = json.dumps([attention] * SIZES["small" if scale == "cpu" else "lm"][0])
    sets = (*own, f"model.layers={layers}", f"model.options.{attention}.positions={positions}")
    return Row(_name(cell), "norm" if frame == "T2" else "vanilla", sets, seeds=3, scales=(scale,))


def _recall(cell: Cell) -> Row:
    """The cell as the second layer of the models of the study `recall`."""
    attention, positions, frame = cell
    sets = (f'model.layers=["diag", "{attention}"]', f"model.options.{attention}.positions={positions}")
    gated = GATED if frame == "T2" else ()
    return Row(_name(cell), None, (*sets, *gated), seeds=3, recipe="recall", scales=("cpu",))


@STUDY.add("attribution")
class Attribution(Trained):
    """Every attention with and without LRPE in both frames, on causal text and on recall."""

    title = "What attention, positions and frame contribute"
    paper, item = "linnet", "attribution"
    picture = "the score of every combination"
    scales: ClassVar = {"cpu": Scale("wikitext2", "_lm_small"), "paper": Scale("transnormer_lm", "_lm")}
    rows = (
        *(_recall(cell) for cell in CELLS),
        *(_language_model(cell, scale) for scale in ("cpu", "paper") for cell in CELLS),
    )

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """For each task, the scores of all combinations and the main effects."""
        parts: list[Table | str] = []
        for task, (label, scored) in TASKS.items():
            found = attribution_scores(records, task)
            if not found:
                continue
            columns = [f"{task}: {label}", *(f"{positions}, {frame} frame" for positions, frame in PLACES)]
            rows = [
                [attention, *(_cell_text(found.get((attention, *place), {}), task) for place in PLACES)]
                for attention in FACTORS["attention"]
            ]
            parts += [
                Table(task, columns, rows),
                attribution_effects(found, f"{task}: {scored}"),
                _budget(records, task),
            ]
        return parts

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """For each task, one line per attention over the four places."""
        figures = []
        for task, (label, _) in TASKS.items():
            found = attribution_scores(records, task)
            lines = [
                spread_line(attention, {x: list(seeds.values()) for x, seeds in _along(found, attention)})
                for attention in FACTORS["attention"]
                if _along(found, attention)
            ]
            if lines:
                places = ", ".join(f"{x}: {positions} in {frame}" for x, (positions, frame) in enumerate(PLACES, 1))
                shown = "log perplexity" if task == "causal_lm" else label
                figures.append(Figure(task, f"positions and frame ({places})", shown, lines, note=note))
        return figures


def attribution_scores(records: Sequence[Record], task: str) -> dict[Cell, dict[int, float]]:
    """The score of each combination by seed: log perplexity, or the percentage of right answers."""
    found: dict[Cell, dict[int, float]] = {}
    cells = {_name(cell): cell for cell in CELLS}
    for record in records:
        if record["config"]["task"] == task:
            test = record["test"]
            score = math.log(test["perplexity"]) if task == "causal_lm" else 100 * test["accuracy"]
            found.setdefault(cells[record["row"]], {})[record["seed"]] = score
    return found


def attribution_effect(found: Mapping[Cell, Mapping[int, float]], factor: int, level: str) -> list[float]:
    """For each seed, the mean difference from the first level of a factor, over all levels of the other factors."""
    first = list(FACTORS.values())[factor][0]
    by_seed: dict[int, list[float]] = {}
    for cell, seeds in found.items():
        other = (*cell[:factor], first, *cell[factor + 1 :])
        for seed, score in seeds.items():
            if cell[factor] == level and seed in found.get(other, {}):
                by_seed.setdefault(seed, []).append(score - found[other][seed])
    return [statistics.fmean(differences) for _, differences in sorted(by_seed.items())]


def attribution_effects(found: Mapping[Cell, Mapping[int, float]], label: str) -> Table:
    """One line per level of each factor except its first."""
    rows = []
    for factor, (name, (first, *others)) in enumerate(FACTORS.items()):
        for level in others:
            seeds = attribution_effect(found, factor, level)
            effect = spread(seeds) if seeds else None
            error = f"{effect.error:.3f}" if effect and effect.size > 1 else "-"
            cells = [f"{effect.mean:+.3f}", error, str(effect.size)] if effect else ["-", "-", "0"]
            rows.append([f"{name}: {level} instead of {first}", *cells])
    return Table(label, [f"main effects on {label}", "mean difference", "standard error", "seeds"], rows)


def _along(found: Mapping[Cell, Mapping[int, float]], attention: str) -> list[tuple[int, Mapping[int, float]]]:
    """The places that an attention has scores for, numbered from 1."""
    return [(x, found[attention, *place]) for x, place in enumerate(PLACES, 1) if (attention, *place) in found]


def _cell_text(seeds: Mapping[int, float], task: str) -> str:
    shown = [math.exp(score) if task == "causal_lm" else score for score in seeds.values()]
    return spread_text(shown, 1)


def _budget(records: Sequence[Record], task: str) -> str:
    """The budget of a task's runs, and the command."""
    first = next(record for record in records if record["config"]["task"] == task)
    train = first["config"]["train"]
    return (
        f"Each run of {task}: {first['tokens']:,} tokens, {train['steps']:,} steps, learning rate {train['lr']:g}, "
        f"{first['environment']['threads']} thread, {record_versions(first['environment'])}. The range is over seeds. "
        f"Command: `{first['command']}`."
    )
