"""Recall of key-value pairs: the accuracy of every causal mechanism by the number of pairs to remember."""

import statistics
from collections.abc import Sequence
from typing import ClassVar

from linnet.errors import LinnetError
from linnet.figures.figure import Figure
from linnet.figures.spread import spread_line, spread_text
from linnet.figures.table import Table
from linnet.registry import ATTENTION, STUDY
from linnet.studies.records import Record, mean_core_seconds, record_versions, records_by_row
from linnet.studies.trained import Row, Scale, Trained

CAUSAL = [name for name in ATTENTION.names() if ATTENTION[name].causal_form]


@STUDY.add("recall")
class RecallStudy(Trained):
    """Two-layer models that differ only in the second layer, which has to remember."""

    title = "Recall of key-value pairs: every causal mechanism"
    paper, item = "linnet", "recall"
    picture = "accuracy against the number of pairs"
    core_hours = 1.4
    scales: ClassVar = {"cpu": Scale("recall")}
    rows = tuple(Row(name, None, (f'model.layers=["diag", "{name}"]',), seeds=3) for name in CAUSAL)

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per mechanism: mean accuracy in percent and, if there are several seeds, the range."""
        pairs = _pairs(records)
        columns = ["mechanism", "parameters", "seeds", *(f"{P} pairs" for P in pairs), "seconds"]
        rows = []
        for name, runs in recall_by_mechanism(records).items():
            cells = [spread_text(_accuracies(runs, P), 1) for P in pairs]
            seconds = f"{mean_core_seconds(runs):,.0f}"
            rows.append([name, f"{runs[0]['parameters']:,}", str(len(runs)), *cells, seconds])
        return [Table(self.title, columns, rows), _budget(records)]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """Accuracy against the number of pairs, the mean over seeds, with the range shaded."""
        pairs = _pairs(records)
        series = [
            spread_line(name, {P: _accuracies(runs, P) for P in pairs})
            for name, runs in recall_by_mechanism(records).items()
        ]
        perfect = [line.name for line in series if min(value or 0 for value in line.y) > 99.5]
        note = f"{note}. On one line at 100 %: {', '.join(perfect)}." if len(perfect) > 1 else note
        y = "right answers, percent"
        level = [("chance", _chance(records[0]))]
        return [Figure("Recall", "key-value pairs to remember", y, series, log_x=True, note=note, levels=level)]


def _chance(record: Record) -> float:
    """The percentage of right answers of a guess among the values."""
    vocabulary = record["config"]["data"]["vocab_size"] - 1  # one is blank, half are keys
    return 100 / (vocabulary - vocabulary // 2)


def _pairs(records: Sequence[Record]) -> list[int]:
    """The numbers of pairs; raises if the runs did not get the same data, budget and settings."""
    settings = [{**r["config"], "model": None, "seed": None, "threads": r["environment"]["threads"]} for r in records]
    if any(other != settings[0] for other in settings):
        raise LinnetError("the runs had different settings: only the model and the seed may differ")
    pairs: list[int] = settings[0]["data"]["pairs"]
    return pairs


def _accuracies(runs: Sequence[Record], pairs: int) -> list[float]:
    """The percentage of right answers of each run on the test samples with `pairs` pairs."""
    return [100 * run["test"][f"accuracy_{pairs}_pairs"] for run in runs]


def recall_by_mechanism(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by row, the best mean over the numbers of pairs first."""
    pairs, rows = _pairs(records), records_by_row(records)
    mean = {name: statistics.fmean(a for P in pairs for a in _accuracies(runs, P)) for name, runs in rows.items()}
    return {name: rows[name] for name in sorted(rows, key=lambda name: -mean[name])}


def _budget(records: Sequence[Record]) -> str:
    """The budget and the data of a run, and the command."""
    first = records[0]
    data, train, about = first["config"]["data"], first["config"]["train"], first["environment"]
    return (
        f"Percentage of right answers, on {about['samples']['test']:,} test samples of {data['context']} tokens with "
        f"{' or '.join(map(str, data['pairs']))} pairs each; guessing gives {_chance(first):.1f}. Each run: "
        f"{first['tokens']:,} tokens, {train['steps']:,} steps of {train['batch']} samples, learning rate "
        f"{train['lr']:g}, {about['threads']} thread, {record_versions(about)}. The range is over seeds. Times were "
        f"taken on a busy machine; do not compare them. Command: `{first['command']}`."
    )
