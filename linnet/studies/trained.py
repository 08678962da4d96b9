"""Studies made of training runs: rows of systems, run and resumed at a scale, each leaving one record.

A study runs at a size for two CPU cores (`cpu`) or, if it is a paper's, at the paper's own (`paper`). A record holds
everything needed to judge a number: configuration, model, seed, versions, tokens, seconds and the whole curve.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from linnet.config import RunConfig, load_recipe_config
from linnet.errors import InputError, unknown_name_error
from linnet.models.backbone import build_backbone_on_meta, count_backbone_parameters
from linnet.models.config import ModelConfig
from linnet.models.presets import preset_config
from linnet.registry import TASK
from linnet.screen import Screen
from linnet.storage import BusyError, read_json_file, read_run_metrics, write_json_file
from linnet.studies.base import Planned, Report, Request, Study
from linnet.studies.records import Record, mean_core_seconds, record_resolved_model, stamp_record
from linnet.studies.unfinished import render_unfinished, unfinished_runs, unfinished_table
from linnet.train.check import check_and_read_config, check_config_difference
from linnet.train.fresh import fresh_config
from linnet.train.run import Outcome, Run, resume_run, start_run
from linnet.train.size import size_in_tokens, size_in_updates

PEAK, UTILIZATION = 312e12, 0.3  # of an A100: operations per second in bfloat16, and the share that training reaches
CORE = 2e10  # operations per second of training on a CPU core; the committed runs reached 4e9 to 9e10


class Row(NamedTuple):
    """One system: its preset if any, changes to the recipe, the number of seeds, and its scales."""

    name: str
    preset: str | None  # the beginning of its name; the scale adds the ending
    sets: tuple[str, ...] = ()
    seeds: int = 1
    recipe: str = ""  # replaces that of the scale
    scales: tuple[str, ...] = ("cpu", "paper")


class Scale(NamedTuple):
    """How the rows run at one scale: a recipe, the ending of the presets' names, and changes to the recipe."""

    recipe: str
    ending: str = ""
    sets: tuple[str, ...] = ()


class StudyRun(NamedTuple):
    """One run of a study: a row, a seed and the resulting configuration."""

    row: Row
    seed: int
    config: RunConfig

    @property
    def name(self) -> str:
        """The name of its folder and of its record."""
        return study_run_name(self.row, self.seed)


def study_run_name(row: Row, seed: int) -> str:
    """The name of a run: the recipe if it is the row's own, the row, and the seed."""
    task = f"{row.recipe.rpartition('/')[2]}-" if row.recipe else ""
    name = row.name.replace(" ", "-").replace("+", "-").replace(",", "")
    return f"{task}{name}-seed{seed}"


class Trained(Study):
    """A study of runs that differ only in the model and the seed."""

    kind = "trained"
    fields = frozenset({"row", "seed", "config", "test", "curve", "environment", "command"})
    scales: ClassVar[Mapping[str, Scale]]
    rows: ClassVar[Sequence[Row]]
    shared: ClassVar[str] = ""  # name of the folder of runs, if several studies share them
    scored_batches: ClassVar[int] = 0  # batches of a split that score a finished run; 0: all

    def command(self, scale: str) -> str:
        """The command that makes the records, with its scale."""
        return f"{super().command(scale)} --scale {scale}"

    def heading(self, scale: str) -> str:
        """The title, with its scale."""
        return f"{self.title} ({scale} scale)"

    def folders(self, request: Request) -> tuple[Path, Path]:
        """The folders of runs and records; if runs are shared, each study still has its own records."""
        if not self.shared:
            return super().folders(request)
        out = request.out or Path("runs") / f"{self.shared}-{request.scale}"
        return out, request.results or out / f"results-{self.name}"

    def check(self, request: Request) -> None:
        """Raise if the study lacks the scale or a run."""
        self.study_runs(request.scale, request.seeds, request.only)

    def study_runs(self, scale: str, seeds: int | None = None, only: Sequence[str] = ()) -> list[StudyRun]:
        """The runs: the first seed of every row, then the second, so that an early stop leaves a whole table.

        `seeds` replaces the number of seeds of each row. `only` selects runs by the beginning of their names, in its
        order.
        """
        if scale not in self.scales:
            raise unknown_name_error("scale", scale, self.scales)
        planned = [
            StudyRun(row, seed, self._config(row, scale, seed))
            for seed in range(seeds or max(row.seeds for row in self.rows))
            for row in self.rows
            if seed < (seeds or row.seeds) and scale in row.scales
        ]
        for name in only:
            if not any(run.name.startswith(name) for run in planned):
                raise unknown_name_error("run", name, [run.name for run in planned])
        return [run for name in only or ("",) for run in planned if run.name.startswith(name)]

    def _config(self, row: Row, scale: str, seed: int) -> RunConfig:
        at = self.scales[scale]
        preset = () if row.preset is None else (f"model.preset={row.preset}{at.ending}",)
        return load_recipe_config(row.recipe or at.recipe, (*preset, *at.sets, *row.sets, f"seed={seed}"))

    def runs(self, scale: str, seeds: int | None = None) -> list[str]:
        """The names of the runs."""
        return [run.name for run in self.study_runs(scale, seeds)]

    def dry_run(self, scale: str, only: Sequence[str] = (), seeds: int | None = None) -> list[Planned]:
        """Size, tokens, steps and estimated GPU hours of each run."""
        return [_planned_run(run) for run in self.study_runs(scale, seeds, only)]

    def estimated_core_hours(self, scale: str) -> float | None:
        """`core_hours` if set; otherwise six operations per parameter and token at the usual speed of one core."""
        if self.core_hours is not None:
            return self.core_hours
        hours = sum(6 * run.parameters * run.tokens for run in self.dry_run(scale)) / CORE / 3600
        return float(f"{hours:.2g}")

    def make(self, request: Request, out: Path, folder: Path, screen: Screen) -> int:
        """Do the missing runs; returns the signal that stopped it, or 0.

        A stopped run resumes. A run that another process holds is skipped, so two processes can share the work.
        """
        for run in self.study_runs(request.scale, request.seeds, request.only):
            place = folder / f"{run.name}.json"
            if place.exists():
                continue
            ready = self.complete_run(run, out, folder, screen)
            if ready is None:
                continue
            screen.say(f"{self.name}, {request.scale} scale: {run.name}")
            try:
                outcome = train_study_run(ready, out / run.name, screen)
            except BusyError:
                continue
            if outcome.signal:
                return outcome.signal
            found = self.record(request.scale, ready, outcome)
            folder.mkdir(parents=True, exist_ok=True)
            write_json_file(place, found)
        return 0

    def complete_run(self, run: StudyRun, out: Path, folder: Path, screen: Screen) -> StudyRun | None:
        """The run, with settings that follow from earlier runs; None if it must wait for them. By default unchanged."""
        return run

    def record(self, scale: str, run: StudyRun, outcome: Outcome) -> Record:
        """Everything about one finished run, as it is committed."""
        folder, task = outcome.folder, TASK[run.config.task]
        metrics, before = (read_run_metrics(folder / part / "metrics.jsonl") for part in ("", "pretrain"))
        timings = [r for part in ("", "pretrain") for r in read_run_metrics(folder / part / "timings.jsonl")]
        read_before = max((entry["tokens"] for entry in before if entry["split"] == "train"), default=0)
        environment = json.loads((folder / "environment.json").read_text())
        config = run.config.model_dump(mode="json", exclude_none=True)
        for key in run.config.data.paths():
            config["data"].pop(key, None)  # paths differ between machines; the hashes below identify the data
        which = task.scored
        test = self._score(outcome, "test")
        valid = {**test, "split": "valid"} if task.validates_on_test else self._score(outcome, "valid")
        return {
            **stamp_record(self.name, self.kind, self.command(scale)),
            "scale": scale,
            "row": run.row.name,
            "seed": run.seed,
            "config": config,
            "model": record_resolved_model(outcome.run.model_config),
            "parameters": outcome.parameters,
            "tokens": read_before + outcome.tokens,
            "seconds": round(sum(entry.get("seconds", 0.0) for entry in timings), 1),
            **_core_seconds(timings),
            **_loading_share(timings),
            "environment": {key: value for key, value in environment.items() if key != "started"},
            "curve": metrics,
            **({"pretraining": before} if before else {}),
            "checkpoint": which,
            "valid": valid,
            "test": test,
            **self.readings(outcome.run, metrics),
        }

    def _score(self, outcome: Outcome, split: str) -> dict[str, Any]:
        """The metrics of a finished run on a split; a shared run keeps them for the other studies."""
        which = TASK[outcome.run.config.task].scored
        place = outcome.folder / f"{split}-{which}-{outcome.step}-{self.scored_batches}.json"
        if self.shared and place.exists():
            kept: dict[str, Any] = read_json_file(place)
            return kept
        found = outcome.run.evaluate(split, which, self.scored_batches)
        if self.shared:
            write_json_file(place, found)
        return found

    def to_markdown(self, records: Sequence[Record]) -> str:
        """Tables, paragraphs and claims, and which of the planned runs are not done."""
        left = self._not_run(records)
        return "\n\n".join([super().to_markdown(records), *([left] if left else [])])

    def _not_run(self, records: Sequence[Record]) -> str:
        """The planned runs without a record, and the time that they would take; empty if there are none."""
        done = {(record["row"], record["seed"], record["config"].get("task")) for record in records}
        planned = self.study_runs(records[0]["scale"])
        left = [run.name for run in planned if (run.row.name, run.seed, run.config.task) not in done]
        names, hours = ", ".join(f"`{name}`" for name in left), len(left) * mean_core_seconds(records) / 3600
        return f"Planned and not run, about {hours:.1f} core-hours more: {names}." if left else ""

    def readings(self, run: Run, metrics: list[dict[str, Any]]) -> Record:
        """Further fields of a record, measured on the trained model; none by default."""
        return {}

    def report(self, request: Request, out: Path, folder: Path, signal: int) -> Report:
        """Also render the unfinished runs."""
        begun = unfinished_runs(out)
        table = [f"{unfinished_table(begun).to_markdown()}\n"] if begun else []
        title = f"{self.heading(request.scale)}: unfinished runs"
        pages = render_unfinished(begun, out, title) if request.render else ()
        shown = [" and ".join(map(str, pages))] if pages else []
        found = self.rendered_so_far(request, folder, needed=request.render and not begun)
        asked = [run.name for run in self.study_runs(request.scale, request.seeds, request.only)]
        left = not request.render and any(not (folder / f"{name}.json").exists() for name in asked)
        text = "\n".join([*table, *shown, found.text]) + (": the same command continues" if left else "")
        data = {**found.data, "begun": [run.name for run in begun], "signal": signal}
        named = dict(itertools.zip_longest(("begun_page", "begun_figure"), map(str, pages)))
        return Report(text, {**data, **named}, signal)


def train_study_run(run: StudyRun, folder: Path, screen: Screen) -> Outcome:
    """Start a run, or resume it."""
    if not (folder / "config.toml").exists():
        return start_run(run.config, folder, screen)
    check_trained_run(folder, run.config)
    return resume_run(folder, screen)


def check_trained_run(folder: Path, planned: RunConfig) -> None:
    """Raise if the study's settings have changed since a run began: its record would be wrong."""
    changed = check_config_difference(
        check_and_read_config(folder), fresh_config(planned), also=("steps", "eval_every")
    )
    if changed:
        raise InputError(f"{folder} was made by an earlier version of the study; now {changed}: move it away")


def _core_seconds(timings: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """A field of the record: the seconds of processor time, if all of it was measured."""
    found = [entry.get("core_seconds") for entry in timings]
    known = [seconds for seconds in found if seconds is not None]
    return {"core_seconds": round(sum(known), 1)} if known and len(known) == len(found) else {}


def _loading_share(timings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """A field of the record: the share of the update time spent loading batches, if it was timed."""
    timed = [(entry["loading"], entry["seconds"]) for entry in timings if "loading" in entry]
    seconds = sum(seconds for _, seconds in timed)
    return {"loading": round(sum(loading for loading, _ in timed) / seconds, 5)} if seconds else {}


def _planned_run(run: StudyRun) -> Planned:
    """The plan of a run.

    Tokens are steps * batch * accumulate * context, including pretraining and padding. GPU hours are those of one A100
    in bfloat16: 6 * parameters * tokens / (312e12 per second * 0.3).
    """
    tokens, parameters = size_in_tokens(run.config), _parameters(planned_trained_model(run.config).model_dump_json())
    hours = float(f"{trained_gpu_hours(parameters, tokens):.4g}")
    return Planned(run.name, parameters, tokens, size_in_updates(run.config), hours)


def trained_gpu_hours(parameters: int, tokens: int) -> float:
    """Estimated hours of training on one A100: six operations per parameter and token."""
    return 6 * parameters * tokens / (PEAK * UTILIZATION) / 3600


def planned_trained_model(config: RunConfig) -> ModelConfig:
    """The model of a run, without reading its data; a vocabulary that depends on the text has the preset's size."""
    return preset_config({**TASK[config.task].planned_fields(config.data, config.pretrain), **config.model})


@cache
def _parameters(model: str) -> int:
    """Number of trainable parameters, counted on the meta device."""
    return count_backbone_parameters(build_backbone_on_meta(ModelConfig.model_validate_json(model)))
