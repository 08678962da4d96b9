"""A verdict needs seeds that both rows have, a difference beyond its interval, and no other difference."""

import pytest

from linnet.studies.claims import (
    FAILS,
    HOLDS,
    OPEN,
    Comparison,
    claim_half_interval,
    claims_of_records,
    claims_of_rows,
    claims_table,
)

CLAIM = Comparison("A is lower than B", "A", "B")


def seeds(*values):
    return dict(enumerate(values))


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([1.0, 1.1, 1.2], [2.0, 2.1, 2.3], HOLDS),
        ([2.0, 2.1, 2.3], [1.0, 1.1, 1.2], FAILS),
        ([1.0, 5.0, 9.0], [1.5, 5.6, 9.4], HOLDS),  # the seeds differ much, the rows within a seed do not
        ([1.0, 1.5, 2.0], [1.5, 1.6, 2.5], OPEN),  # 0.37 is less than 4.3 errors of 0.13
        ([1.0, 1.1], [2.0, 2.5], OPEN),  # two seeds need 12.7 errors, here of 0.2
        ([1.0], [9.0, 9.1], OPEN),
        ([1.0], [9.0], OPEN),
    ],
)
def test_verdicts(a, b, verdict):
    (claim,) = claims_of_rows([CLAIM], {"A": seeds(*a), "B": seeds(*b)})
    assert claim.verdict == verdict


def test_only_seeds_of_both_rows_are_compared():
    (claim,) = claims_of_rows([CLAIM], {"A": {0: 1.0, 1: 1.0, 7: 99.0}, "B": {0: 2.0, 1: 2.0, 5: -99.0}})
    assert "difference 1.00 ± 0.00" in claim.evidence
    (claim,) = claims_of_rows([CLAIM], {"A": {0: 1.0, 1: 1.0}, "B": {2: 2.0, 3: 2.0}})
    assert claim.verdict == OPEN


def test_the_interval_is_that_of_student():
    student = pytest.importorskip("scipy.stats").t
    for size in (2, 3, 5, 11, 12, 20, 50, 500):
        assert claim_half_interval(2.0, size) == pytest.approx(2.0 * student.ppf(0.975, size - 1), rel=0.003)
    assert claim_half_interval(float("nan"), 1) == float("inf")


def test_the_evidence_has_the_numbers():
    (claim,) = claims_of_rows([CLAIM], {"A": seeds(1.0, 1.1, 1.2), "B": seeds(2.0, 2.1, 2.5)})
    numbers = "A 1.10 (3 seeds), B 2.20 (3 seeds); difference 1.10 ± 0.10 (standard error), "
    assert claim.evidence == numbers + "95 % interval 0.67 to 1.53"
    (claim,) = claims_of_rows([CLAIM], {"A": seeds(1.0), "B": seeds(2.0, 2.2)}, digits=1)
    assert claim.evidence == "A 1.0 (1 seed), B 2.1 (2 seeds); one seed has no standard error"


def test_records_are_compared_by_a_value_of_each():
    records = [{"row": row, "seed": seed, "x": x} for row, x in (("A", 1.0), ("B", 3.0)) for seed in (0, 1)]
    (claim,) = claims_of_records([CLAIM], records, lambda record: record["x"])
    assert (claim.verdict, "difference 2.00" in claim.evidence) == (HOLDS, True)


def test_a_confounded_claim_stays_open_and_names_the_confound():
    mixed = CLAIM._replace(confound="B has another norm")
    (claim,) = claims_of_rows([mixed], {"A": seeds(1.0, 1.1), "B": seeds(9.0, 9.1)})
    assert (claim.verdict, claim.evidence.endswith("; B has another norm")) == (OPEN, True)


def test_a_claim_about_rows_that_are_not_there_is_left_out():
    assert claims_of_rows([CLAIM], {"A": seeds(1.0)}) == []


def test_claims_are_a_table_of_words():
    lines = claims_table(claims_of_rows([CLAIM], {"A": seeds(1.0), "B": seeds(2.0)})).to_markdown().splitlines()
    assert lines[:2] == ["| claim | here | evidence |", "| --- | --- | --- |"]
    assert lines[2].startswith(f"| A is lower than B | {OPEN} |")
