"""A verdict needs several seeds of both rows, a difference beyond their error, and no other difference."""

import pytest

from linnet.studies.claims import FAILS, HOLDS, OPEN, Comparison, claims_of_rows, claims_table

CLAIM = Comparison("A is lower than B", "A", "B")


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([1.0, 1.1, 1.2], [2.0, 2.1, 2.2], HOLDS),
        ([2.0, 2.1, 2.2], [1.0, 1.1, 1.2], FAILS),
        ([1.0, 1.5, 2.0], [1.5, 2.0, 2.5], OPEN),  # 0.5 is less than three errors of 0.41
        ([1.0], [9.0, 9.1], OPEN),
        ([1.0], [9.0], OPEN),
    ],
)
def test_verdicts(a, b, verdict):
    (claim,) = claims_of_rows([CLAIM], {"A": a, "B": b})
    assert claim.verdict == verdict


def test_the_evidence_has_the_numbers():
    (claim,) = claims_of_rows([CLAIM], {"A": [1.0, 1.1, 1.2], "B": [2.0, 2.1, 2.2]})
    assert claim.evidence == "A 1.10 (3 seeds), B 2.10 (3 seeds); difference 1.00 ± 0.08 (standard error)"
    (claim,) = claims_of_rows([CLAIM], {"A": [1.0], "B": [2.0, 2.2]}, digits=1)
    assert claim.evidence == "A 1.0 (1 seed), B 2.1 (2 seeds); one seed has no standard error"


def test_a_confounded_claim_stays_open_and_names_the_confound():
    mixed = CLAIM._replace(confound="B has another norm")
    (claim,) = claims_of_rows([mixed], {"A": [1.0, 1.1], "B": [9.0, 9.1]})
    assert (claim.verdict, claim.evidence.endswith("; B has another norm")) == (OPEN, True)


def test_a_claim_about_rows_that_are_not_there_is_left_out():
    assert claims_of_rows([CLAIM], {"A": [1.0]}) == []


def test_claims_are_a_table_of_words():
    lines = claims_table(claims_of_rows([CLAIM], {"A": [1.0], "B": [2.0]})).to_markdown().splitlines()
    assert lines[:2] == ["| claim | here | evidence |", "| --- | --- | --- |"]
    assert lines[2].startswith(f"| A is lower than B | {OPEN} |")
