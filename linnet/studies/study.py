"""Studies: runs that differ in one thing, such as the rows of a paper's table, each kept as one JSON file.

A study runs at a size that two CPU cores can do (`cpu`) or, if it is a paper's, at the paper's own (`paper`). A file
holds all that is needed to judge a number: configuration, seed, versions, size, tokens, seconds and the whole curve.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from linnet.config import RunConfig, load_recipe
from linnet.errors import InputError, unknown
from linnet.figures.heatmap import pack
from linnet.instruments.analyze import measure
from linnet.instruments.attention_map import pooled
from linnet.instruments.base import of_model
from linnet.models.loading import load_run
from linnet.registry import ATTENTION, TASK
from linnet.screen import Screen
from linnet.storage import BusyError, read_metrics, write_json
from linnet.studies.lra_rows import ARENA_STUDIES
from linnet.studies.plan import Row, Study
from linnet.train.check import difference, run_config
from linnet.train.run import Outcome, evaluate_run, prepare, resume_run, start_run
from linnet.train.watch import validation_blocks


class Trial(NamedTuple):
    """One run of a study."""

    row: Row
    seed: int
    config: RunConfig

    @property
    def name(self) -> str:
        task = f"{self.row.recipe.rpartition('/')[2]}-" if self.row.recipe else ""
        name = self.row.name.replace(" ", "-").replace("+", "-").replace(",", "")
        return f"{task}{name}-seed{self.seed}"


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
WATCHED = (  # for what attention and gradients do: more and smaller updates, read along the way
    *SMALL,
    "train.steps=600",
    "train.batch=8",
    "train.warmup=60",
    'train.instruments=["entropy", "temperature"]',
    "train.instrument_every=50",
)
VANILLA, ELU, NORM = Row("vanilla", "vanilla"), Row("1+elu", "elu"), Row("norm only", "norm")
LLN = (Row("lln", "lln"), Row("lln_diag", "lln_diag"))
BLOCKS = 4  # of the validation split, for the instruments of a study
CAUSAL = [name for name in ATTENTION.names() if ATTENTION[name].causal_form]


def watched(title: str, rows: tuple[Row, ...], instruments: tuple[str, ...], maps: int = 0) -> Study:
    """A study of attention and gradients; several share their models, in folders of one name."""
    return Study(
        title=title,
        recipes={"cpu": "wikitext2", "paper": "transnormer_roberta"},
        endings={"cpu": "_lm_small", "paper": "_roberta"},
        cpu_sets=WATCHED,
        rows=rows,
        shared="watched",
        instruments=instruments,
        maps=maps,
    )


def masked(row: Row) -> Row:
    """The same system as a masked model, which has a spectral gap, in the frame of the causal ones."""
    sets = (*row.sets, "model.causal=false", "model.output=masked_lm", "model.init=xavier")
    gap = 'train.instruments=["entropy", "temperature", "spectral_gap"]'
    return Row(f"{row.name}, masked", row.preset, (*sets, gap), recipe="wikitext2_mlm", scales=("cpu",))


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
            Row("Performer", "performer"),
            Row("cosFormer", "cosformer"),
            Row("Transformer-LS", "long_short"),
            Row("FLASH", "flash"),
            Row("FLASH-quad", "flash_quad"),
        ),
    ),
    "transnormer-masked-lm": Study(
        title="Masked language modeling: TransNormer, vanilla and 1+elu",
        recipes={"cpu": "wikitext2_mlm", "paper": "transnormer_roberta"},
        endings={"cpu": "_roberta_small", "paper": "_roberta"},
        cpu_sets=SMALL,
        rows=(Row("T2", "transnormer_t2"), Row("vanilla", "vanilla"), Row("1+elu", "elu")),
    ),
    "transnormer-figure2": watched(
        "Attention dilution: locally accumulated scores and attention maps, as in TransNormer's Figure 2",
        (VANILLA, ELU, Row("T1", "transnormer_t1"), Row("T2", "transnormer_t2"), NORM),
        ("local_score", "entropy"),
        maps=64,
    ),
    "transnormer-table2": watched(
        "Relative standard deviation of gradients, as in TransNormer's Table 2",
        (VANILLA, ELU, Row("performer", "performer"), NORM),
        ("gradient_deviation",),
    ),
    "lln-training": watched(
        "Entropy, temperature and spectral gap along training: LLN beside softmax",
        (VANILLA, *LLN, ELU, masked(VANILLA), masked(LLN[0])),
        ("entropy", "temperature", "spectral_gap", "moment_matching", "lognormal_fit"),
    ),
    "recall": Study(
        title="Recall of key-value pairs: every causal mechanism",
        recipes={"cpu": "recall"},
        endings={},
        cpu_sets=(),
        rows=tuple(Row(name, None, (f'model.layers=["diag", "{name}"]',), seeds=3) for name in CAUSAL),
    ),
    **ARENA_STUDIES,
}


def find_study(name: str, also: Iterable[str] = ()) -> Study:
    """A study by name; `also` are further names that the error for another one offers."""
    if name not in STUDIES:
        raise unknown("study", name, (*STUDIES, *also))
    return STUDIES[name]


def trials(study: Study, scale: str, seeds: int | None = None) -> Iterator[Trial]:
    """The runs of a study: the first seed of every row, then the second, so that an early stop leaves a whole table.

    `seeds` are those of each row, in place of its own number of them.
    """
    if scale not in study.recipes:
        raise unknown("scale", scale, study.recipes)
    for seed in range(seeds or max(row.seeds for row in study.rows)):
        for row in study.rows:
            if seed < (seeds or row.seeds) and scale in row.scales:
                sets = (*(study.cpu_sets if scale == "cpu" else ()), *row.sets)
                preset = () if row.preset is None else (f"model.preset={row.preset}{study.endings[scale]}",)
                recipe = row.recipe or study.recipes[scale]
                yield Trial(row, seed, load_recipe(recipe, (*preset, *sets, f"seed={seed}")))


def chosen(planned: list[Trial], only: tuple[str, ...]) -> list[Trial]:
    """The runs whose names begin with one of `only`, in the order of `only`; without it all."""
    for name in only:
        if not any(trial.name.startswith(name) for trial in planned):
            raise unknown("run", name, [trial.name for trial in planned])
    return [trial for name in only or ("",) for trial in planned if trial.name.startswith(name)]


def run_study(
    name: str,
    scale: str,
    out: Path,
    results: Path,
    screen: Screen,
    only: tuple[str, ...] = (),
    seeds: int | None = None,
) -> int:
    """Do what is missing of a study; returns the signal that stopped it, 0 if none did.

    With `only`, the runs whose names begin with one of these, in this order. A run that was stopped goes on; one that
    another process works on is left to it, so two processes share the work.
    """
    for trial in chosen(list(trials(find_study(name), scale, seeds)), only):
        place = results / f"{trial.name}.json"
        if place.exists():
            continue
        screen.say(f"{name}, {scale} scale: {trial.name}")
        folder = out / trial.name
        try:
            begun = (folder / "config.toml").exists()
            if begun:
                check_begun(folder, trial.config)
            outcome = resume_run(folder, screen) if begun else start_run(trial.config, folder, screen)
        except BusyError:
            continue
        if outcome.signal:
            return outcome.signal
        results.mkdir(parents=True, exist_ok=True)
        write_json(place, record(name, scale, trial, outcome, screen))
    return 0


def command_of(name: str, scale: str) -> str:
    """What makes the results of a study."""
    return f"linnet reproduce {name} --scale {scale}"


def check_begun(folder: Path, planned: RunConfig) -> None:
    """Refuse a run with other settings than a study now has: its record would tell of a run that never was."""
    changed = difference(run_config(folder), planned, also=("steps", "eval_every"))
    if changed:
        raise InputError(f"{folder} is a run of an earlier form of the study, in which now {changed}: move it away")


def record(name: str, scale: str, trial: Trial, outcome: Outcome, screen: Screen) -> dict[str, Any]:
    """Everything about one finished run, as it is committed."""
    metrics, before = (read_metrics(outcome.folder / part / "metrics.jsonl") for part in ("", "pretrain"))
    timings = [r for part in ("", "pretrain") for r in read_metrics(outcome.folder / part / "timings.jsonl")]
    read_before = max((entry["tokens"] for entry in before if entry["split"] == "train"), default=0)
    environment = json.loads((outcome.folder / "environment.json").read_text())
    config = trial.config.model_dump(mode="json", exclude_none=True)
    for key in ("path", "cache"):
        config["data"].pop(key, None)  # a path of one machine says nothing to another; the hashes below do
    which = "best" if config["task"].startswith("lra/") else "last"
    study = find_study(name)
    test = evaluate_run(outcome.folder, "test", screen, which)
    return {
        "study": name,
        "scale": scale,
        "row": trial.row.name,
        "seed": trial.seed,
        "command": command_of(name, scale),
        "config": config,
        "parameters": outcome.parameters,
        "tokens": read_before + outcome.tokens,
        "seconds": round(sum(entry.get("seconds", 0.0) for entry in timings), 1),
        **loading_share(timings),
        "environment": {key: value for key, value in environment.items() if key != "started"},
        "curve": metrics,
        **({"pretraining": before} if before else {}),
        "checkpoint": which,
        "valid": {**test, "split": "valid"}
        if TASK[config["task"]].validates_on_test
        else evaluate_run(outcome.folder, "valid", screen, which),
        "test": test,
        **({"analysis": readings(outcome.folder, study, metrics, screen)} if study.instruments else {}),
    }


def loading_share(timings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """As a field of the record: how much of the time of updates went into loading their batches, where it was taken."""
    timed = [(entry["loading"], entry["seconds"]) for entry in timings if "loading" in entry]
    seconds = sum(seconds for _, seconds in timed)
    return {"loading": round(sum(loading for loading, _ in timed) / seconds, 5)} if seconds else {}


def readings(folder: Path, study: Study, metrics: list[dict[str, Any]], screen: Screen) -> dict[str, Any]:
    """What instruments say of the trained model on the validation split, and its maps on the first block."""
    task, _ = prepare(run_config(folder), folder, screen)
    model, _ = load_run(folder, None, screen.warn)
    views = of_model(model, validation_blocks(task, BLOCKS))
    found = measure(views, study.instruments, records=metrics)
    for i in (0, -1) if study.maps else ():
        heads = pooled(views[i], study.maps, signed=False)[0]  # signs would cancel in the mean over heads
        found["layers"][i]["map"] = pack(heads.mean(dim=0).numpy())
    return found
