"""Claims of a paper, each with a verdict that is computed from records and the numbers behind it."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from linnet.figures.spread import Spread, spread
from linnet.figures.table import Table

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told at this size"
ERRORS = 3  # standard errors that a difference must exceed: three seeds estimate their deviation only roughly
COLUMNS = ("claim", "here", "evidence")


class Claim(NamedTuple):
    """A statement of a paper in our words, the verdict of the records, and their numbers."""

    statement: str
    verdict: str
    evidence: str


class Comparison(NamedTuple):
    """The claim that the row `less` has a smaller mean than the row `more`; `confound` says what else differs."""

    statement: str
    less: str
    more: str
    confound: str = ""


def claims_of_rows(
    comparisons: Sequence[Comparison], values: Mapping[str, Sequence[float]], digits: int = 2
) -> list[Claim]:
    """The claims for which both rows have records, given the values of each row's seeds."""
    known = [claim for claim in comparisons if {claim.less, claim.more} <= values.keys()]
    return [_compare(claim, spread(values[claim.less]), spread(values[claim.more]), digits) for claim in known]


def _compare(claim: Comparison, low: Spread, high: Spread, digits: int) -> Claim:
    """A verdict needs several seeds of both rows, and no other difference between them."""
    numbers = f"{_seeds(claim.less, low, digits)}, {_seeds(claim.more, high, digits)}"
    if claim.confound:
        return Claim(claim.statement, OPEN, f"{numbers}; {claim.confound}")
    if min(low.size, high.size) < 2:
        return Claim(claim.statement, OPEN, f"{numbers}; one seed has no standard error")
    gap, error = high.mean - low.mean, math.hypot(low.error, high.error)
    verdict = HOLDS if gap > ERRORS * error else FAILS if gap < -ERRORS * error else OPEN
    evidence = f"{numbers}; difference {gap:.{digits}f} ± {error:.{digits}f} (standard error)"
    return Claim(claim.statement, verdict, evidence)


def _seeds(name: str, found: Spread, digits: int) -> str:
    return f"{name} {found.mean:.{digits}f} ({found.size} seed{'s' if found.size > 1 else ''})"


def claims_table(claims: Sequence[Claim]) -> Table:
    """One line per claim."""
    return Table("claims", COLUMNS, claims, COLUMNS)
