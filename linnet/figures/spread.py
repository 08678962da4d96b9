"""The spread of a number over repetitions, such as seeds: its mean and range, in a cell of a table or along a curve."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from linnet.figures.figure import Series


class Spread(NamedTuple):
    """Mean, smallest and largest of `size` values, and the standard error of the mean (NaN for one value)."""

    mean: float
    low: float
    high: float
    size: int
    error: float

    def to_text(self, digits: int = 2, what: str = "") -> str:
        """The mean and, if there are several values, their range; with `what`, also their number."""
        mean, low, high = (f"{value:.{digits}f}" for value in (self.mean, self.low, self.high))
        counted = f", {self.size} {what}" if what else ""
        return mean if self.size == 1 else f"{mean} ({low} to {high}{counted})"


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    n = len(values)
    error = statistics.stdev(values) / math.sqrt(n) if n > 1 else math.nan
    return Spread(statistics.fmean(values), min(values), max(values), n, error)


def spread_text(values: Sequence[float], digits: int = 2, what: str = "") -> str:
    """The cell of a table; "-" where there is no value."""
    return spread(values).to_text(digits, what) if values else "-"


def spread_line(name: str, points: Mapping[float, Sequence[float]]) -> Series:
    """A line through the means of the values at each x, with their range shaded."""
    x = sorted(points)
    found = [spread(points[at]) for at in x]
    if all(point.size == 1 for point in found):
        return Series(name, x, [point.mean for point in found])
    return Series(
        name, x, [point.mean for point in found], [point.low for point in found], [point.high for point in found]
    )
