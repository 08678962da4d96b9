"""TransNormer's Table 6: accuracy on the Long Range Arena, every system on every task."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

from linnet.errors import LinnetError
from linnet.figures.figure import Figure
from linnet.figures.spread import spread_line, spread_text
from linnet.figures.table import Table
from linnet.registry import STUDY
from linnet.studies.base import TRANSNORMER
from linnet.studies.records import Record, record_versions
from linnet.studies.systems import SYSTEMS
from linnet.studies.trained import Row, Scale, Trained

TASKS = ("lra/text", "lra/listops", "lra/retrieval", "lra/retrieval_small", "lra/pathfinder", "lra/image")
BENCHMARK = set(TASKS) - {"lra/retrieval_small"}  # the tasks of an average
CLASSES = {task: 10 if task in ("lra/listops", "lra/image") else 2 for task in TASKS}  # chance is one in so many
# At the CPU scale, models and sequences have the paper's size. ListOps has the paper's data, batch and peak rate, and a
# tenth of its steps; the other tasks have far fewer and smaller steps, and so a higher rate.
HIGHER = ("train.lr=1e-3", "train.warmup_lr=4e-5", "train.min_lr=4e-9", "train.warmup=50", "train.log_every=50")
PICTURES = ("train.steps=1000", "train.batch=32", "train.eval_every=250", "train.eval_batches=60")
ON_CPU = {
    "lra/listops": ("train.steps=5000", "train.warmup=100", "train.eval_every=500"),
    "lra/image": (*HIGHER, *PICTURES),
    "lra/pathfinder": (*HIGHER, *PICTURES, "data.count=50000"),
    "lra/text": (*HIGHER, "train.steps=1000", "train.batch=16", "train.eval_every=250", "train.eval_batches=60"),
    "lra/retrieval_small": (*HIGHER, "train.steps=300", "train.batch=4", "train.eval_every=100"),
}
EVERYWHERE = ("T2", "vanilla", "1+elu")  # on a CPU
ON_LISTOPS = (*EVERYWHERE, "T1", "lln_diag")
PRETRAINED = {"lra/listops": 2500, "lra/image": 500, "lra/text": 500}  # half of the steps, after as much denoising


def _lra_rows() -> Iterator[Row]:
    """Each system on each task, ListOps first; at the CPU scale only some, and T2 again with pretraining."""
    for recipe, sets in ON_CPU.items():
        for name in ON_LISTOPS if recipe == "lra/listops" else EVERYWHERE:
            yield Row(name, SYSTEMS[name], (*sets, "train.threads=1"), 1, recipe, ("cpu",))
        if half := PRETRAINED.get(recipe):
            halves = ("pretrain=true", f"train.steps={half}", f"train.pretrain_steps={half}", "train.threads=1")
            yield Row("T2, pretrained", SYSTEMS["T2"], (*sets, *halves), 1, recipe, ("cpu",))
    for task in ("listops", "text", "retrieval", "pathfinder", "image"):
        for name, preset in SYSTEMS.items():
            yield Row(name, preset, (), 1, f"lra/{task}", ("paper",))


@STUDY.add("transnormer-table6")
class Table6(Trained):
    """Test accuracy of the checkpoint with the best validation accuracy, by system and task."""

    title = "The Long Range Arena: the systems of TransNormer's Table 6"
    paper, item = TRANSNORMER, "Table 6"
    picture = "validation accuracy against steps"
    core_hours = 10.1
    scales: ClassVar = {"cpu": Scale("lra/listops", "_lra"), "paper": Scale("lra/listops", "_lra")}
    rows = tuple(_lra_rows())

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system, one column per task, and the average of systems that have all tasks of the benchmark."""
        found = table6_accuracies(records)
        tasks = [task for task in TASKS if any(task in row for row in found.values())]
        averaged = set(tasks) == BENCHMARK and any(len(row) == len(tasks) for row in found.values())
        columns = ["system", *map(table6_task_name, tasks), *(["average"] if averaged else [])]
        rows = []
        for name, row in found.items():
            average = f"{table6_mean(row):.2f}" if len(row) == len(tasks) else "-"
            cells = [spread_text(row.get(task, []), what="seeds") for task in tasks]
            rows.append([name, *cells, *([average] if averaged else [])])
        return [Table(self.title, columns, rows), _budget(records, tasks)]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """Validation accuracy against steps, including those of pretraining; one panel per task."""
        figures, systems = [], list(table6_accuracies(records))
        for task in [task for task in TASKS if any(record["config"]["task"] == task for record in records)]:
            lines: dict[str, dict[float, list[float]]] = {name: {} for name in systems}
            for record in (record for record in records if record["config"]["task"] == task):
                for entry in (entry for entry in record["curve"] if entry["split"] == "valid"):
                    spent = _before(record["config"]) + entry["step"]
                    lines[record["row"]].setdefault(spent, []).append(100 * entry["accuracy"])
            series = [spread_line(name, curve) for name, curve in lines.items()]
            level = [("chance", 100 / CLASSES[task])]
            title, y = table6_task_name(task), "validation accuracy, %"
            figures.append(Figure(title, "step", y, series, note=note, levels=level))
        return figures


def table6_task_name(task: str) -> str:
    """The name of a task in a heading."""
    return task.removeprefix("lra/")


def table6_accuracies(records: Sequence[Record]) -> dict[str, dict[str, list[float]]]:
    """Test accuracy in percent of each seed, by system and task; the best systems, on tasks that all have, first."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in sorted(records, key=lambda record: record["seed"]):
        by_task = found.setdefault(record["row"], {})
        by_task.setdefault(record["config"]["task"], []).append(100 * record["test"]["accuracy"])
    shared = set.intersection(*map(set, found.values())) if found else set()
    compared = {name: {t: v for t, v in row.items() if t in shared} or row for name, row in found.items()}
    return dict(sorted(found.items(), key=lambda item: -table6_mean(compared[item[0]])))


def table6_mean(by_task: dict[str, list[float]]) -> float:
    """The mean over tasks of the mean over seeds."""
    return statistics.fmean(statistics.fmean(values) for values in by_task.values())


def _budget(records: Sequence[Record], tasks: Sequence[str]) -> str:
    """The budget of each task; raises if its runs had different budgets or data."""
    parts = []
    for task in tasks:
        on_task = [record for record in records if record["config"]["task"] == task]
        _check_same_data(on_task, task)
        _check_seeds(on_task, task)
        budgets = {_spent(record["config"]) for record in on_task}
        if len(budgets) != 1:
            raise LinnetError(f"the runs on {task} had different budgets: {sorted(budgets)}")
        ((steps, batch, context, rate),) = budgets
        size = f"{steps:,} steps of {batch} {'pairs' if 'retrieval' in task else 'sequences'}"
        size += f" of up to {context:,} tokens, learning rate {rate:g}"
        parts.append(f"{table6_task_name(task)} {size}, {_error(on_task)}")
    first = records[0]
    shares = [record["loading"] for record in records if "loading" in record]
    loading = f" Loading data took at most {max(shares):.1%} of an update, where it was timed." if shares else ""
    return (
        f"Test accuracy in percent, of the checkpoint with the best validation accuracy. Each run: {'; '.join(parts)}; "
        f"{record_versions(first['environment'])}. Steps of pretraining are counted.{loading} "
        f"Command: `{first['command']}`."
    )


def _error(on_task: Sequence[Record]) -> str:
    """The largest standard error of an accuracy on this many test samples, in points."""
    tests = [record["test"] for record in on_task]
    errors = [math.sqrt(test["accuracy"] * (1 - test["accuracy"]) / test["samples"]) for test in tests]
    return f"tested on {tests[0]['samples']:,}, standard error {100 * max(errors):.1f}"


def _check_same_data(on_task: Sequence[Record], task: str) -> None:
    """Raise if the data of runs have different hashes: their accuracies would not be comparable."""
    first, *others = on_task
    for other in others:
        if other["environment"].get("data") != first["environment"].get("data"):
            one, two = (f"{record['row']} with seed {record['seed']}" for record in (first, other))
            raise LinnetError(f"the runs on {task} had different data: {one}, and {two}")


def _check_seeds(on_task: Sequence[Record], task: str) -> None:
    """Raise if a run occurs twice: it would count as two seeds."""
    for (row, seed), times in Counter((record["row"], record["seed"]) for record in on_task).items():
        if times > 1:
            raise LinnetError(f"the runs on {task} have {row} with seed {seed} {times} times")


def _spent(config: Record) -> tuple[int, int, int, float]:
    """Updates including pretraining, samples per update, their length, and the peak learning rate."""
    train = config["train"]
    steps, size = train["steps"] + _before(config), train["batch"] * train["accumulate"]
    return steps, size, config["data"]["context"], train["lr"]


def _before(config: Record) -> int:
    """Updates of pretraining."""
    train = config["train"]
    return (train["pretrain_steps"] or train["steps"]) if config.get("pretrain") else 0
