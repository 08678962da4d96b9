"""Results of the Long Range Arena as tables and figures: accuracy by task, speed by length, and both with memory."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from linnet.errors import LinnetError
from linnet.figures.figure import Figure, Series

Record = dict[str, Any]
TASKS = ("lra/text", "lra/listops", "lra/retrieval", "lra/retrieval_small", "lra/pathfinder", "lra/image")
BENCHMARK = set(TASKS) - {"lra/retrieval_small"}  # what an average is of, or nothing


def accuracies(records: Sequence[Record]) -> dict[str, dict[str, list[float]]]:
    """Test accuracy in percent of each seed, by system and task; the best systems, on tasks that all have, first."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in sorted(records, key=lambda record: record["seed"]):
        by_task = found.setdefault(record["row"], {})
        by_task.setdefault(record["config"]["task"], []).append(100 * record["test"]["accuracy"])
    shared = set.intersection(*map(set, found.values())) if found else set()
    compared = {name: {t: v for t, v in row.items() if t in shared} or row for name, row in found.items()}
    return dict(sorted(found.items(), key=lambda item: -_average(compared[item[0]])))


def _average(by_task: dict[str, list[float]]) -> float:
    """The mean over tasks of the mean over seeds."""
    return statistics.fmean(statistics.fmean(values) for values in by_task.values())


def accuracy_table(records: Sequence[Record]) -> str:
    """One line a system, one column a task, and the average of those systems that have all tasks of the benchmark."""
    rows = accuracies(records)
    tasks = [task for task in TASKS if any(task in row for row in rows.values())]
    averaged = set(tasks) == BENCHMARK and any(len(row) == len(tasks) for row in rows.values())
    heads = ["system", *(task.removeprefix("lra/") for task in tasks), *(["average"] if averaged else [])]
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' --: |' * (len(heads) - 1)}"]
    for name, row in rows.items():
        average = f"{_average(row):.2f}" if len(row) == len(tasks) else "-"
        cells = [name, *(_spread(row.get(task, [])) for task in tasks), *([average] if averaged else [])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _budget(records, tasks)])


def _spread(values: Sequence[float]) -> str:
    """A mean, and the range of several seeds."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f}, {len(values)} seeds)"


def _error(records: Sequence[Record], task: str) -> str:
    """The largest standard error of an accuracy on so many test samples, in points."""
    tests = [record["test"] for record in records if record["config"]["task"] == task]
    errors = [math.sqrt(test["accuracy"] * (1 - test["accuracy"]) / test["samples"]) for test in tests]
    return f"tested on {tests[0]['samples']:,}, standard error {100 * max(errors):.1f}"


def _budget(records: Sequence[Record], tasks: Sequence[str]) -> str:
    """What was spent on each task; refused where the runs on one did not get the same, or had other data."""
    parts = []
    for task in tasks:
        _check_same_data(records, task)
        _check_seeds(records, task)
        budgets = {_spent(record["config"]) for record in records if record["config"]["task"] == task}
        if len(budgets) != 1:
            raise LinnetError(f"the runs on {task} had different budgets: {sorted(budgets)}")
        ((steps, batch, context, rate),) = budgets
        size = f"{steps:,} steps of {batch} {'pairs' if 'retrieval' in task else 'sequences'}"
        size += f" of up to {context:,} tokens, rate {rate:g}"
        parts.append(f"{task.removeprefix('lra/')} {size}, {_error(records, task)}")
    first = records[0]
    versions = f"linnet {first['environment']['linnet']}, torch {first['environment']['torch']}"
    shares = [record["loading"] for record in records if "loading" in record]
    loading = f" Loading took at most {max(shares):.1%} of an update, where its time was taken." if shares else ""
    return (
        f"Test accuracy in percent, of the checkpoint with the best validation accuracy. Each run: {'; '.join(parts)}; "
        f"{versions}. Steps of pretraining are counted.{loading} Command: `{first['command']}`."
    )


def _check_same_data(records: Sequence[Record], task: str) -> None:
    """Refuse runs whose data have different hashes: their accuracies are not of the same samples."""
    first, *others = (record for record in records if record["config"]["task"] == task)
    for other in others:
        if other["environment"].get("data") != first["environment"].get("data"):
            one, two = (f"{record['row']} with seed {record['seed']}" for record in (first, other))
            raise LinnetError(f"the runs on {task} had different data: {one}, and {two}")


def _check_seeds(records: Sequence[Record], task: str) -> None:
    """Refuse a run that is there twice: it would count as two seeds."""
    runs = Counter((record["row"], record["seed"]) for record in records if record["config"]["task"] == task)
    for (row, seed), times in runs.items():
        if times > 1:
            raise LinnetError(f"the runs on {task} have {row} with seed {seed} {times} times")


def _spent(config: Record) -> tuple[int, int, int, float]:
    """Updates, those of pretraining too, samples of each, their length, and the highest rate."""
    train = config["train"]
    steps, size = train["steps"] + _before(config), train["batch"] * train["accumulate"]
    return steps, size, config["data"]["context"], train["lr"]


def _before(config: Record) -> int:
    """Updates of pretraining."""
    train = config["train"]
    return (train["pretrain_steps"] or train["steps"]) if config.get("pretrain") else 0


def accuracy_curves(records: Sequence[Record], note: str) -> list[Figure]:
    """Validation accuracy against steps, those of pretraining too, the mean over seeds; one figure a task."""
    figures, systems = [], list(accuracies(records))
    for task in [task for task in TASKS if any(record["config"]["task"] == task for record in records)]:
        # one without a curve keeps its place, and with it the color that it has elsewhere
        lines: dict[str, dict[int, list[float]]] = {name: {} for name in systems}
        for record in records:
            if record["config"]["task"] == task:
                curve = lines[record["row"]]
                for entry in record["curve"]:
                    if entry["split"] == "valid":
                        spent = _before(record["config"]) + entry["step"]
                        curve.setdefault(spent, []).append(100 * entry["accuracy"])
        series = [
            Series(name, sorted(curve), [statistics.fmean(curve[step]) for step in sorted(curve)])
            for name, curve in lines.items()
        ]
        figures.append(Figure(task.removeprefix("lra/"), "step", "validation accuracy, %", series, note=note))
    return figures


def speed_table(records: Sequence[Record]) -> str:
    """Steps a second and what they are of vanilla's, in inference and training, by length."""
    records = sorted(records, key=lambda record: record["tokens"])
    names = _systems(records)
    lengths = [f"{record['tokens']:,}" for record in records]
    lines = []
    for kind in ("inference", "training"):
        lines += [f"| {kind}, steps a second | {' | '.join(lengths)} |", f"| --- |{' --: |' * len(lengths)}"]
        for name in names:
            cells = [_speed(record, name, kind) for record in records]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
    lines += [f"| memory of a training step, MB | {' | '.join(lengths)} |", f"| --- |{' --: |' * len(lengths)}"]
    for name in names:
        cells = [f"{row['memory'] / 1e6:,.0f}" if (row := _row(record, name)) else "-" for record in records]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    about, busy = records[0]["environment"], [record["others"] for record in records if record["others"] is not None]
    for record in records:
        if (record["environment"], record["batch"]) != (about, records[0]["batch"]):
            both = f"{records[0]['tokens']:,} and {record['tokens']:,} tokens"
            raise LinnetError(f"{both} were measured on different machines, threads, versions or batches")
    others = f"Other programs kept up to {max(busy):.1f} cores busy meanwhile. " if busy else ""
    note = (
        f"Batch {records[0]['batch']}, {about['threads']} of {about['cores']} cores ({about['machine']}), "
        f"torch {about['torch']}, linnet {about['linnet']}; systems in turns, medians; memory on one "
        f"thread. In brackets: times vanilla's. {others}Command: `{records[0]['command']}`."
    )
    return "\n".join([*lines, "", note])


def _systems(records: Sequence[Record]) -> list[str]:
    """The systems of any length, each once."""
    return list(dict.fromkeys(row["row"] for record in records for row in record["rows"]))


def _row(record: Record, name: str) -> Record | None:
    """What was measured of one system at one length; None where it was not."""
    return next((row for row in record["rows"] if row["row"] == name), None)


def _speed(record: Record, name: str, kind: str) -> str:
    """Steps a second, and how many times vanilla's that is."""
    mine, vanilla = _row(record, name), _row(record, "vanilla")
    if mine is None:
        return "-"
    ratio = f" ({mine[kind] / vanilla[kind]:.2f})" if vanilla and name != "vanilla" else ""
    return f"{mine[kind]:.3g}{ratio}"


def speed_curves(records: Sequence[Record], note: str) -> list[Figure]:
    """Steps a second against length."""
    records = sorted(records, key=lambda record: record["tokens"])
    found = {
        name: [(record["tokens"], row) for record in records if (row := _row(record, name))]
        for name in _systems(records)
    }
    return [
        Figure(
            kind.capitalize(),
            "tokens",
            "steps a second",
            [Series(name, [x for x, _ in at], [row[kind] for _, row in at]) for name, at in found.items()],
            log_x=True,
            log_y=True,
            note=note,
        )
        for kind in ("inference", "training")
    ]


def circles(scores: Sequence[Record], speeds: Sequence[Record], tokens: int, note: str) -> Figure:
    """Accuracy, the mean over the tasks that all systems have, against training speed; a circle's area is memory."""
    by_system = accuracies(scores)
    measured = next((record for record in speeds if record["tokens"] == tokens), None)
    if measured is None:
        raise LinnetError(f"the speeds have no row of {tokens:,} tokens")
    rows = [row for row in measured["rows"] if row["row"] in by_system]
    tasks = [task for task in TASKS if all(task in by_system[row["row"]] for row in rows)]
    if not rows or not tasks:
        raise LinnetError("the scores and the speeds have no systems with a task in common: finish more runs")
    means = {row["row"]: _average({task: by_system[row["row"]][task] for task in tasks}) for row in rows}
    series = [Series(row["row"], [row["training"]], [means[row["row"]]], sizes=[row["memory"]]) for row in rows]
    title = f"Score, speed and memory at {tokens:,} tokens"
    score = f"test accuracy, % ({', '.join(task.removeprefix('lra/') for task in tasks)})"
    return Figure(title, "training steps a second", score, series, log_x=True, note=note)
