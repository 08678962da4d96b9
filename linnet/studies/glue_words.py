"""GLUE by logistic regression on bags of words: what a task yields without word order, attention or pretraining.

A text is the set of its lower-case words; a pair has the words of each half alone and those of both. Scores, as of
STS-B, are fitted by least squares with the same features.
"""

import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding_bag

from linnet import __version__
from linnet.data.glue import GLUE, default_glue_path, read_glue_splits
from linnet.data.labeled_texts import LabeledTexts
from linnet.figures.figure import Figure, Series
from linnet.figures.table import Table
from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies.records import Record, record_versions
from linnet.studies.untrained import Untrained
from linnet.tasks.metrics import METRICS

TASKS = ("cola", "sst2", "mrpc", "rte", "stsb", "qnli_dev", "mnli_dev", "qqp_20k")
WORD = re.compile(r"\w+|[^\w\s]")
RAREST = 2  # texts that a word must occur in
PENALTY = 1.0  # of the squared weights, beside twice the loss summed over the training texts
STEPS = 200  # of L-BFGS at most
COLUMNS = ("task", "metric", "bag of words, %", "most common answer, %", "texts to train", "texts to score", "words")


@STUDY.add("glue-words")
class GlueWords(Untrained):
    """A floor under the table of GLUE: an encoder that scores no more has not used the order of words."""

    kind = "fitted"
    core_hours = 0.023
    scales = ("cpu",)
    title = "GLUE by bags of words"
    paper, item = "linnet", "GLUE"
    picture = "scores of bags of words and of the most common answer, task by task"
    fields: ClassVar = frozenset({"task", "test", "majority", "environment", "command"})

    def runs(self, scale: str, seeds: int | None = None) -> list[str]:
        """One record per task."""
        return list(TASKS)

    def result(self, run: str, screen: Screen) -> Record:
        """The metrics on the development set, or on the held-out texts of a part."""
        screen.say(f"{self.name}: {run}")
        layout, start = GLUE[run], time.process_time()
        texts = read_glue_splits(run, Path(default_glue_path(run)), 0)
        scored = texts["test" if layout.part else "valid"]
        answers, words = glue_words_answers(texts["train"], scored, len(layout.classes))
        values, counts = np.unique(texts["train"].labels, return_counts=True)
        common = values[counts.argmax()] if layout.classes else texts["train"].labels.mean()
        guess = np.full(len(scored), common)
        return {
            "task": run,
            "metrics": list(layout.metrics),
            "train": len(texts["train"]),
            "scored": len(scored),
            "words": words,
            "sha256": {split: part.texts_sha256() for split, part in texts.items()},
            "test": {name: METRICS[name](scored.labels, answers) for name in layout.metrics},
            "majority": {name: METRICS[name](scored.labels, guess) for name in layout.metrics},
            "seconds": round(time.process_time() - start, 1),
            "environment": {"linnet": __version__, "torch": torch.__version__},
        }

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per task, by its leading metric."""
        rows = []
        for record in _in_order(records):
            leading = record["metrics"][0]
            scores = (f"{100 * record[key][leading]:.1f}" for key in ("test", "majority"))
            sizes = (f"{record[key]:,}" for key in ("train", "scored", "words"))
            rows.append([record["task"], leading, *scores, *sizes])
        versions = record_versions(records[0]["environment"])
        note = f"Nothing is random. {versions}. Command: `{records[0]['command']}`."
        return [Table(self.title, COLUMNS, rows, words=COLUMNS[:2]), note]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """Two points per task."""
        found = _in_order(records)
        x = [float(i) for i in range(1, len(found) + 1)]
        lines = [
            Series(label, x, [100 * record[key][record["metrics"][0]] for record in found], points=True)
            for key, label in (("test", "bag of words"), ("majority", "most common answer"))
        ]
        names = [record["task"] for record in found]
        return [Figure("Leading metric", "task", "%", lines, note=note, x_names=names)]


def _in_order(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda record: TASKS.index(record["task"]))


def glue_words_answers(train: LabeledTexts, texts: LabeledTexts, classes: int) -> tuple[NDArray[np.float64], int]:
    """The class of each text, or its score if there are no classes, and the number of features."""
    bags = [_bags(train), _bags(texts)]
    counts = Counter(word for bag in bags[0] for word in bag)
    columns = {word: i for i, word in enumerate(sorted(word for word, n in counts.items() if n >= RAREST))}
    known, asked = (_places(bag, columns) for bag in bags)
    labels = torch.from_numpy(train.labels)
    weights = torch.zeros(len(columns) + 1, classes or 1, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([weights], max_iter=STEPS, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        found = embedding_bag(known[0], weights, known[1], mode="sum")
        if classes:
            error = cross_entropy(found, labels.long(), reduction="sum")
        else:
            error = (found[:, 0] - labels).square().sum() / 2
        total: Tensor = error + PENALTY / 2 * weights[:-1].square().sum()
        total.backward()
        return total

    search.step(loss)
    with torch.no_grad():
        answers = embedding_bag(asked[0], weights, asked[1], mode="sum")
    return (answers.argmax(dim=1) if classes else answers[:, 0]).double().numpy(), len(columns)


def _bags(texts: LabeledTexts) -> list[set[str]]:
    """The features of each text."""
    found = []
    for i, first in enumerate(texts.first):
        a = set(WORD.findall(first.lower()))
        b = set() if texts.second is None else set(WORD.findall(texts.second[i].lower()))
        parts = {"first": a - b, "second": b - a, "both": a & b}
        found.append({f"{part} {word}" for part, words in parts.items() for word in words})
    return found


def _places(bags: Sequence[set[str]], columns: dict[str, int]) -> tuple[Tensor, Tensor]:
    """The features of all texts in a row, each text with a last one that all have, and where each text begins."""
    rows = [[*sorted(columns[word] for word in bag if word in columns), len(columns)] for bag in bags]
    starts = np.cumsum([0, *map(len, rows[:-1])])
    return torch.tensor([place for row in rows for place in row]), torch.from_numpy(starts)
