"""The metrics of sentence tasks: accuracy, F1, Matthews' correlation, and Pearson's and Spearman's for scores."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def accuracy_metric(truth: Numbers, guess: Numbers) -> float:
    """The share of right answers."""
    return float((truth == guess).mean())


def f1_metric(truth: Numbers, guess: Numbers) -> float:
    """The harmonic mean of precision and recall of class 1; 0 if no text has it or is given it."""
    both = float(((truth == 1) & (guess == 1)).sum())
    either = float((truth == 1).sum() + (guess == 1).sum())
    return 2 * both / either if either else 0.0


def matthews_metric(truth: Numbers, guess: Numbers) -> float:
    """Matthews' correlation of two classes, -1 to 1; 0 if one side has a single class."""
    return pearson_metric(truth, guess)  # the same, for two classes as 0 and 1


def pearson_metric(truth: Numbers, guess: Numbers) -> float:
    """Pearson's correlation; 0 if one side is constant."""
    a, b = truth - truth.mean(), guess - guess.mean()
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum() / size) if size > 0 else 0.0


def spearman_metric(truth: Numbers, guess: Numbers) -> float:
    """Pearson's correlation of the ranks; equal numbers share the mean of their ranks."""
    return pearson_metric(_ranks(truth), _ranks(guess))


def _ranks(x: Numbers) -> Numbers:
    values, place, count = np.unique(x, return_inverse=True, return_counts=True)
    del values
    ends = np.cumsum(count)
    return (ends - (count - 1) / 2)[place].astype(np.float64)


METRICS: dict[str, Callable[[Numbers, Numbers], float]] = {
    "accuracy": accuracy_metric,
    "f1": f1_metric,
    "matthews": matthews_metric,
    "pearson": pearson_metric,
    "spearman": spearman_metric,
}
