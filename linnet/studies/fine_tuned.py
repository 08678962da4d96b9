"""Studies of encoders that are pretrained once each and then fine-tuned on several tasks.

For each system and task there is a run per learning rate with seed 0; the rate that is best on the development set then
has further seeds. So the rate of such a run follows from earlier records, and the run waits until these are there.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from linnet.config import RunConfig
from linnet.data.glue import GLUE
from linnet.figures.figure import Figure
from linnet.figures.spread import spread_line, spread_text
from linnet.figures.table import Table
from linnet.models.presets import GATED, UNITS
from linnet.screen import Screen
from linnet.storage import read_json_file
from linnet.studies.base import Request
from linnet.studies.claims import Claim, Comparison, claims_of_rows
from linnet.studies.encoder_texts import collect_encoder_texts
from linnet.studies.records import Record, record_versions
from linnet.studies.trained import Row, StudyRun, Trained, study_run_name
from linnet.train.fresh import change_fresh_data

SCRATCH = "not pretrained"
Scores = dict[str, dict[str, dict[int, float]]]  # system: task: seed: the leading metric, in percent


class Plan(NamedTuple):
    """Fine-tuning at one scale: the tasks with their updates, the rates, the seeds of the best rate, and settings."""

    tasks: Mapping[str, int]
    rates: Sequence[float]
    seeds: int
    sets: Sequence[str] = ()
    scratch: Sequence[str] = ()  # the systems that are also trained without pretraining


class Tuned(NamedTuple):
    """A fine-tuning row, its encoder, the name of the system in the table, the task, and the rate if it is fixed."""

    row: Row
    encoder: Row
    system: str
    task: str
    rate: float | None


def encoder_rows(name: str, preset: str, own: Sequence[str] = ()) -> tuple[Row, Row]:
    """A system to pretrain at both scales; on a CPU its FFN, or its units, have a width that equalizes parameters."""
    units = (f"model.options.{preset}.key_width=128", f"model.options.{preset}.value_width=248")
    width = units if preset in UNITS else (f"model.ffn_width={341 if preset in GATED else 512}",)
    return Row(name, preset, (*width, *own), scales=("cpu",)), Row(name, preset, tuple(own), scales=("paper",))


def fine_tuned_rows(encoders: Sequence[Row], plans: Mapping[str, Plan]) -> list[Tuned]:
    """For every scale, task and system: a row per rate, then one for the further seeds of the best rate."""
    found = []
    for scale, plan in plans.items():
        here = [(row, row.name, ()) for row in encoders if scale in row.scales]
        alone = [(row, f"{name}, {SCRATCH}", ("data.scratch=true",)) for row, name, _ in here if name in plan.scratch]
        for task, steps in plan.tasks.items():
            for encoder, system, own in (*here, *alone):
                sets = (f"task=glue/{task}", f"train.steps={steps}", *plan.sets, *own)
                for rate in (*plan.rates, None):
                    name = f"{system} on {task}" + ("" if rate is None else f" at {rate:g}")
                    fixed = (*sets, f"train.lr={plan.rates[0] if rate is None else rate}")
                    seeds = plan.seeds if rate is None else 1
                    row = Row(name, encoder.preset, fixed, seeds, "finetune", (scale,))
                    found.append(Tuned(row, encoder, system, task, rate))
    return found


class FineTuned(Trained):
    """A table of systems by tasks."""

    picture = "scores of the systems, task by task"
    shared = "glue"
    plans: ClassVar[Mapping[str, Plan]]
    tuned: ClassVar[Sequence[Tuned]]
    averaged: ClassVar[Sequence[str]]  # the whole tasks that the average is of
    comparisons: ClassVar[Sequence[Comparison]] = ()

    def study_runs(self, scale: str, seeds: int | None = None, only: Sequence[str] = ()) -> list[StudyRun]:
        """A fine-tuning run has its encoder's model. Seed 0 of the best rate is one of those that search for it."""
        found = []
        for run in super().study_runs(scale, seeds, only):
            tuned = self._tuned(run)
            if tuned is None:
                found.append(run)
            elif run.seed or tuned.rate is not None:
                encoder = self._config(tuned.encoder, scale, 0)
                size = getattr(encoder.data, "vocab_size", None)
                model = {**encoder.model, **({"vocab_size": size} if size else {})}
                found.append(run._replace(config=run.config.model_copy(update={"model": model})))
        return found

    def _tuned(self, run: StudyRun) -> Tuned | None:
        """The `Tuned` of a fine-tuning row; None for an encoder."""
        return next((one for one in self.tuned if one.row is run.row), None)

    def make(self, request: Request, out: Path, folder: Path, screen: Screen) -> int:
        """Do the runs in two passes, because further seeds wait for the rates of seed 0."""
        for _ in range(2):
            signal = super().make(request, out, folder, screen)
            if signal:
                return signal
        return 0

    def complete_run(self, run: StudyRun, out: Path, folder: Path, screen: Screen) -> StudyRun | None:
        """Give an encoder the collected texts, and a fine-tuning run its encoder and the best rate."""
        tuned = self._tuned(run)
        if tuned is None:
            texts = out / "texts"
            given = run.config.data.path == texts.name  # type: ignore[attr-defined]
            return run if not given else _with_data(run, path=str(collect_encoder_texts(texts, screen).absolute()))
        encoder = study_run_name(tuned.encoder, 0)
        if not (folder / f"{encoder}.json").exists():
            return None
        run = _with_data(run, encoder=str((out / encoder).absolute()))
        if tuned.rate is not None:
            return run
        rate = self._best_rate(folder, tuned)
        return None if rate is None else run._replace(config=_with_rate(run.config, rate))

    def _best_rate(self, folder: Path, tuned: Tuned) -> float | None:
        """The rate with the best score of seed 0 on the development set; None until all rates have one."""
        rivals = [other for other in self.tuned if other[2:4] == tuned[2:4] and other.row.scales == tuned.row.scales]
        scores = {}
        for other in rivals:
            place = folder / f"{study_run_name(other.row, 0)}.json"
            if other.rate is not None and not place.exists():
                return None
            if other.rate is not None:
                scores[other.rate] = _leading(read_json_file(place))
        return max(scores, key=lambda rate: scores[rate])

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system: the mean over the seeds of its best rate, and the average over the whole tasks."""
        scores, tasks = fine_tuned_scores(self.tuned, records), self._tasks(records)
        columns = ["system", *tasks, "average"]
        lines = []
        for system, found in scores.items():
            cells = [spread_text(list(found.get(task, {}).values()), 1) for task in tasks]
            whole = fine_tuned_averages(found, self.averaged)
            lines.append([system, *cells, spread_text(list(whole.values()), 2)])
        versions = record_versions(records[0]["environment"])
        note = (
            f"The leading metric of each task in percent ({_metrics_text(tasks)}), the mean and range over the seeds "
            "of the best rate, which seed 0 chose on the same development set. The average is of "
            f"{', '.join(self.averaged)}. {versions}. Command: `{records[0]['command']}`."
        )
        return [Table(self.title, columns, lines), note]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """One line per system over the tasks."""
        tasks, lines = self._tasks(records), []
        for system, found in fine_tuned_scores(self.tuned, records).items():
            points: dict[float, list[float]] = {
                x: list(found[task].values()) for x, task in enumerate(tasks, 1) if found.get(task)
            }
            lines += [spread_line(system, points)] if points else []
        return [Figure("Leading metric", "task, in the order of the table", "%", lines, note=note)]

    def claims(self, records: Sequence[Record]) -> list[Claim]:
        """Claims about the averages, seed by seed."""
        scores = fine_tuned_scores(self.tuned, records)
        averages = {system: fine_tuned_averages(found, self.averaged) for system, found in scores.items()}
        return claims_of_rows(self.comparisons, {system: found for system, found in averages.items() if found})

    def _tasks(self, records: Sequence[Record]) -> list[str]:
        """The tasks that have records, in the order of the plan."""
        seen = {str(record["config"]["task"]).removeprefix("glue/") for record in records}
        return [task for task in dict.fromkeys(tuned.task for tuned in self.tuned) if task in seen]


def fine_tuned_scores(tuned: Sequence[Tuned], records: Sequence[Record]) -> Scores:
    """The scores of each system at its best rate; the systems in the order of the plan."""
    found: Scores = {}
    for system, task in dict.fromkeys((one.system, one.task) for one in tuned):
        names = {one.row.name: one.rate for one in tuned if (one.system, one.task) == (system, task)}
        runs = [record for record in records if record["row"] in names]
        tried = [run for run in runs if names[run["row"]] is not None]
        if tried:
            more = {run["seed"]: _leading(run) for run in runs if names[run["row"]] is None}
            found.setdefault(system, {})[task] = {0: max(map(_leading, tried)), **more}
    return found


def fine_tuned_averages(found: Mapping[str, Mapping[int, float]], tasks: Sequence[str]) -> dict[int, float]:
    """For each seed that all these tasks have, the mean of their scores."""
    if not all(task in found for task in tasks):
        return {}
    seeds = set.intersection(*(set(found[task]) for task in tasks))
    return {seed: statistics.fmean(found[task][seed] for task in tasks) for seed in sorted(seeds)}


def _leading(record: Record) -> float:
    """The metric that ranks a task, in percent."""
    return 100 * float(record["test"][GLUE[record["config"]["task"].removeprefix("glue/")].metrics[0]])


def _metrics_text(tasks: Sequence[str]) -> str:
    return ", ".join(f"{task}: {GLUE[task].metrics[0]}" for task in tasks)


def _with_data(run: StudyRun, **changes: Any) -> StudyRun:
    return run._replace(config=change_fresh_data(run.config, changes))


def _with_rate(config: RunConfig, rate: float) -> RunConfig:
    return config.model_copy(update={"train": config.train.model_copy(update={"lr": rate})})
