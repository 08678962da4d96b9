"""The learning rates of Table 4: four for each of five systems at both scales."""

from linnet.registry import STUDY
from linnet.studies.transnormer_table4_rates import RATES, SYSTEMS

STUDIED = STUDY["transnormer-table4-rates"]()


def test_every_system_has_every_rate():
    for scale, rates in RATES.items():
        found = {(run.row.name.split(" at ")[0], run.config.train.lr) for run in STUDIED.study_runs(scale)}
        assert found == {(name, rate) for name in SYSTEMS for rate in rates}
        assert len(rates) == 4


def test_a_rate_that_was_not_run_has_a_gap():
    record = {
        "row": "T2 at 0.002",
        "seed": 0,
        "command": "linnet reproduce transnormer-table4-rates --scale cpu",
        "scale": "cpu",
        "config": {"task": "causal_lm"},
        "environment": {"linnet": "1", "torch": "2"},
        "tokens": 80,
        "seconds": 36.0,
        "valid": {"perplexity": 75.5},
    }
    text = STUDIED.to_markdown([record])
    assert "| T2 | - | - | 75.50 | - |" in text
    assert "`T2-at-0.001-seed0`" in text
