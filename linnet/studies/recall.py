"""The study `recall` as a table and a figure: accuracy by mechanism and by the number of pairs to remember."""

import statistics
from collections.abc import Sequence
from typing import Any

from linnet.errors import LinnetError
from linnet.figures.figure import Figure, Series

Record = dict[str, Any]


def recall_pairs(records: Sequence[Record]) -> list[int]:
    """The numbers of pairs; refused where the runs did not get the same data, budget and settings."""
    settings = [{**r["config"], "model": None, "seed": None, "threads": r["environment"]["threads"]} for r in records]
    if any(other != settings[0] for other in settings):
        raise LinnetError("the runs had different settings: only the model and the seed may differ")
    pairs: list[int] = settings[0]["data"]["pairs"]
    return pairs


def accuracies(runs: Sequence[Record], pairs: int) -> list[float]:
    """Of each run, the share of right answers on the test samples with so many pairs."""
    return [run["test"][f"accuracy_{pairs}_pairs"] for run in runs]


def by_mechanism(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records grouped by row, the best mean over the numbers of pairs first."""
    pairs = recall_pairs(records)
    rows: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record["row"], record["seed"])):
        rows.setdefault(record["row"], []).append(record)
    mean = {name: statistics.fmean(a for P in pairs for a in accuracies(runs, P)) for name, runs in rows.items()}
    return {name: rows[name] for name in sorted(rows, key=lambda name: -mean[name])}


def recall_markdown(records: Sequence[Record]) -> str:
    """The table: a line for each mechanism, mean accuracy in percent and, of several seeds, the range."""
    pairs = recall_pairs(records)
    lines = [
        f"| mechanism | parameters | seeds | {' | '.join(f'{P} pairs' for P in pairs)} | seconds |",
        "| --- " + "| --: " * (len(pairs) + 3) + "|",
    ]
    for name, runs in by_mechanism(records).items():
        cells = [
            name,
            f"{runs[0]['parameters']:,}",
            str(len(runs)),
            *(_percent(accuracies(runs, P)) for P in pairs),
            f"{statistics.fmean(run['seconds'] for run in runs):,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _budget(records)])


def _percent(values: Sequence[float]) -> str:
    """A mean, and the range of several values."""
    mean, low, high = (f"{100 * value:.1f}" for value in (statistics.fmean(values), min(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({low} to {high})"


def _budget(records: Sequence[Record]) -> str:
    """What was spent, on what, and how to do it again."""
    first = records[0]
    data, train, about = first["config"]["data"], first["config"]["train"], first["environment"]
    values = data["vocab_size"] - 1 - (data["vocab_size"] - 1) // 2
    return (
        f"Percent of the answers that are right, on {about['samples']['test']:,} test samples of {data['context']} "
        f"tokens with {' or '.join(map(str, data['pairs']))} pairs each; a guess is right in {100 / values:.1f}. Each "
        f"run: {first['tokens']:,} tokens, {train['steps']:,} steps of {train['batch']} samples, learning rate "
        f"{train['lr']:g}, {about['threads']} thread, linnet {about['linnet']}, torch {about['torch']}. The range is "
        "over seeds. Seconds were taken on a machine with other work and compare nothing. "
        f"Command: `{first['command']}`."
    )


def recall_figures(records: Sequence[Record], note: str) -> list[Figure]:
    """Accuracy against the number of pairs, the mean over seeds, with the range shaded."""
    pairs, series = recall_pairs(records), []
    for name, runs in by_mechanism(records).items():
        found = [[100 * a for a in accuracies(runs, P)] for P in pairs]
        bounds = ([min(a) for a in found], [max(a) for a in found]) if len(runs) > 1 else (None, None)
        series.append(Series(name, pairs, [statistics.fmean(a) for a in found], *bounds))
    y = "right answers, percent"
    return [Figure("Recall", "key-value pairs to remember", y, series, log_x=True, note=note)]
