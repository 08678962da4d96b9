"""Claims of a paper, each with a verdict that is computed from records and the numbers behind it.

Runs of one seed read the same data in the same order and are scored on the same tokens, so two rows are compared seed
by seed: effects of the seed on both cancel. Student's 95 % interval of the mean difference decides the verdict.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from linnet.figures.spread import spread
from linnet.figures.table import Table
from linnet.studies.records import Record, records_by_row

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told at this size"
# Student's t for a two-sided 95 % interval, by degrees of freedom; 1.96 is the limit for many.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
COLUMNS = ("claim", "here", "evidence")

Seeds = Mapping[int, float]  # the value of each seed


class Claim(NamedTuple):
    """A paper's statement in linnet's words, the verdict of the records, and their numbers."""

    statement: str
    verdict: str
    evidence: str


class Comparison(NamedTuple):
    """The claim that the row `less` has a smaller mean than the row `more`; `confound` says what else differs."""

    statement: str
    less: str
    more: str
    confound: str = ""


def claims_of_records(
    comparisons: Sequence[Comparison], records: Sequence[Record], value: Callable[[Record], float], digits: int = 2
) -> list[Claim]:
    """The claims for which both rows have records, compared by a value of each record."""
    rows = {name: {run["seed"]: value(run) for run in runs} for name, runs in records_by_row(records).items()}
    return claims_of_rows(comparisons, rows, digits)


def claims_of_rows(comparisons: Sequence[Comparison], rows: Mapping[str, Seeds], digits: int = 2) -> list[Claim]:
    """The claims for which both rows have values, given as {row: {seed: value}}."""
    known = [claim for claim in comparisons if {claim.less, claim.more} <= rows.keys()]
    return [_compare(claim, rows[claim.less], rows[claim.more], digits) for claim in known]


def _compare(claim: Comparison, low: Seeds, high: Seeds, digits: int) -> Claim:
    """A verdict needs several seeds that both rows have, and no other difference between them."""
    numbers = f"{_mean_text(claim.less, low, digits)}, {_mean_text(claim.more, high, digits)}"
    if claim.confound:
        return Claim(claim.statement, OPEN, f"{numbers}; {claim.confound}")
    gaps = [high[seed] - low[seed] for seed in sorted(low.keys() & high.keys())]
    if len(gaps) < 2:
        return Claim(claim.statement, OPEN, f"{numbers}; one seed has no standard error")
    gap = spread(gaps)
    half = claim_half_interval(gap.error, gap.size)
    verdict = HOLDS if gap.mean > half else FAILS if gap.mean < -half else OPEN
    interval = f"95 % interval {gap.mean - half:.{digits}f} to {gap.mean + half:.{digits}f}"
    evidence = f"{numbers}; difference {gap.mean:.{digits}f} ± {gap.error:.{digits}f} (standard error), {interval}"
    return Claim(claim.statement, verdict, evidence)


def claim_half_interval(error: float, size: int) -> float:
    """Half the width of Student's 95 % interval of the mean of `size` values with this standard error."""
    if size < 2:
        return math.inf
    freedom = size - 1
    return error * (STUDENT[freedom - 1] if freedom <= len(STUDENT) else 1.96 + 2.6 / freedom)


def _mean_text(name: str, found: Seeds, digits: int) -> str:
    values = spread(list(found.values()))
    return f"{name} {values.mean:.{digits}f} ({values.size} seed{'s' if values.size > 1 else ''})"


def claims_table(claims: Sequence[Claim]) -> Table:
    """One line per claim."""
    return Table("claims", COLUMNS, claims, COLUMNS)
