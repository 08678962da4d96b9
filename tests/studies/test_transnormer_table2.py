"""Table 2: the largest deviation comes first; one seed or a confound leaves a claim open."""

import copy
from pathlib import Path

from linnet.registry import STUDY
from linnet.studies.claims import HOLDS, OPEN

STUDIED = STUDY["transnormer-table2"]()
RECORDS = STUDIED.read(Path(__file__).parents[2] / "docs/results/transnormer-table2-cpu")


def test_the_largest_deviation_comes_first():
    table, note = STUDIED.parts(RECORDS)
    deviations = [float(row[2]) for row in table.rows]
    assert deviations == sorted(deviations, reverse=True)
    assert note.startswith("Read as std / mean of the gradient's L2 norm")


def test_one_seed_and_a_mixture_of_causes_leave_every_claim_open():
    assert {claim.verdict for claim in STUDIED.claims(RECORDS)} == {OPEN}


def test_more_seeds_can_tell_of_softmax_but_not_of_norm_attention():
    again = copy.deepcopy(RECORDS)
    for record in again:
        record["seed"] = 1
        record["analysis"]["gradients"]["deviation"][0] += 0.001
    first, *others = STUDIED.claims([*RECORDS, *again])
    assert first.verdict == HOLDS
    assert all(claim.verdict == OPEN and "NormAttention alone" in claim.evidence for claim in others)
