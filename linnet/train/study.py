"""Studies: runs that differ in one thing, such as the rows of a paper's table, each kept as one JSON file.

A study runs at a size that two CPU cores can do (`cpu`) or, if it is a paper's, at the paper's own (`paper`). A file
holds all that is needed to judge a number: configuration, seed, versions, size, tokens, seconds and the whole curve.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from linnet.config import RunConfig, load_recipe
from linnet.errors import unknown
from linnet.registry import ATTENTION
from linnet.storage import BusyError, read_metrics, write_json
from linnet.train.log import Screen
from linnet.train.run import Outcome, evaluate_run, resume_run, start_run


@dataclass(frozen=True)
class Row:
    """One system of a study: a preset or none, what is changed in the recipe, and how many seeds it gets."""

    name: str
    preset: str | None
    sets: tuple[str, ...] = ()
    seeds: int = 1


@dataclass(frozen=True)
class Study:
    """Runs that are compared: recipes and preset endings by scale, and what the CPU scale changes in its recipe."""

    title: str
    recipes: dict[str, str]
    endings: dict[str, str]
    cpu_sets: tuple[str, ...]
    rows: tuple[Row, ...]


class Trial(NamedTuple):
    """One run of a study."""

    row: Row
    seed: int
    config: RunConfig

    @property
    def name(self) -> str:
        return f"{self.row.name.replace(' ', '-').replace('+', '-')}-seed{self.seed}"


LRPE = "model.options.softmax.positions=lrpe"
T2_FRAME = ("model.norm=srms", "model.ffn=glu", "model.activation=silu", "model.ffn_width=512")  # all but the attention
SMALL = (  # less than an epoch of WikiText-2, so no dropout: no token is seen twice
    "data.vocab_size=4096",
    "model.dropout=0.0",
    "train.steps=500",
    "train.warmup=50",
    "train.eval_every=100",
    "train.eval_batches=40",
    "train.save_every=100",
    "train.threads=1",
)
CAUSAL = [name for name in ATTENTION.names() if ATTENTION[name].causal_form]
STUDIES = {
    "transnormer-table4": Study(
        title="Causal language modeling: the systems of TransNormer's Table 4",
        recipes={"cpu": "wikitext2", "paper": "transnormer_lm"},
        endings={"cpu": "_lm_small", "paper": "_lm"},
        cpu_sets=SMALL,
        rows=(
            Row("T2", "transnormer_t2", seeds=3),
            Row("vanilla", "vanilla", seeds=3),
            Row("vanilla with LRPE", "vanilla", (LRPE,), seeds=3),
            Row("vanilla in the T2 frame", "vanilla", (LRPE, *T2_FRAME)),
            Row("1+elu", "elu"),
            Row("T1", "transnormer_t1"),
            Row("norm only", "norm"),
            Row("diag only", "diag"),
            Row("lln", "lln"),
            Row("lln_diag", "lln_diag"),
        ),
    ),
    "transnormer-masked-lm": Study(
        title="Masked language modeling: TransNormer, vanilla and 1+elu",
        recipes={"cpu": "wikitext2_mlm", "paper": "transnormer_roberta"},
        endings={"cpu": "_roberta_small", "paper": "_roberta"},
        cpu_sets=SMALL,
        rows=(Row("T2", "transnormer_t2"), Row("vanilla", "vanilla"), Row("1+elu", "elu")),
    ),
    "recall": Study(
        title="Recall of key-value pairs: every causal mechanism",
        recipes={"cpu": "recall"},
        endings={},
        cpu_sets=(),
        rows=tuple(Row(name, None, (f'model.layers=["diag", "{name}"]',), seeds=3) for name in CAUSAL),
    ),
}


def find_study(name: str) -> Study:
    """A study by name."""
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    return STUDIES[name]


def trials(study: Study, scale: str) -> Iterator[Trial]:
    """The runs of a study: the first seed of every row, then the second, so that an early stop leaves a whole table."""
    if scale not in study.recipes:
        raise unknown("scale", scale, study.recipes)
    for seed in range(max(row.seeds for row in study.rows)):
        for row in study.rows:
            if seed < row.seeds:
                sets = (*(study.cpu_sets if scale == "cpu" else ()), *row.sets)
                preset = () if row.preset is None else (f"model.preset={row.preset}{study.endings[scale]}",)
                yield Trial(row, seed, load_recipe(study.recipes[scale], (*preset, *sets, f"seed={seed}")))


def run_study(name: str, scale: str, out: Path, results: Path, screen: Screen) -> int:
    """Do what is missing of a study; returns the signal that stopped it, 0 if none did.

    A run that was stopped goes on; one that another process works on is left to it, so two processes share the work.
    """
    for trial in trials(find_study(name), scale):
        place = results / f"{trial.name}.json"
        if place.exists():
            continue
        screen.say(f"{name}, {scale} scale: {trial.name}")
        folder = out / trial.name
        try:
            begun = (folder / "config.toml").exists()
            outcome = resume_run(folder, screen) if begun else start_run(trial.config, folder, screen)
        except BusyError:
            continue
        if outcome.signal:
            return outcome.signal
        results.mkdir(parents=True, exist_ok=True)
        write_json(place, record(name, scale, trial, outcome, screen))
    return 0


def record(name: str, scale: str, trial: Trial, outcome: Outcome, screen: Screen) -> dict[str, Any]:
    """Everything about one finished run, as it is committed."""
    metrics = read_metrics(outcome.folder / "metrics.jsonl")
    timings = read_metrics(outcome.folder / "timings.jsonl")
    environment = json.loads((outcome.folder / "environment.json").read_text())
    config = trial.config.model_dump(mode="json", exclude_none=True)
    config["data"].pop("path", None)  # a path of one machine says nothing to another; the hashes below do
    return {
        "study": name,
        "scale": scale,
        "row": trial.row.name,
        "seed": trial.seed,
        "command": f"linnet reproduce {name} --scale {scale}",
        "config": config,
        "parameters": outcome.parameters,
        "tokens": outcome.tokens,
        "seconds": round(sum(entry.get("seconds", 0.0) for entry in timings), 1),
        "environment": {key: value for key, value in environment.items() if key != "started"},
        "curve": metrics,
        "valid": evaluate_run(outcome.folder, "valid", screen),
        "test": evaluate_run(outcome.folder, "test", screen),
    }
