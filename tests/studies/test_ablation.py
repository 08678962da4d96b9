"""Ablations: rows of both scales, shared runs, and tables that show what is not run."""

import pytest

from linnet.registry import STUDY
from linnet.studies.ablation import LAYERS, WIDTHS, Ablation
from linnet.studies.trained import planned_trained_model

TABLES = [name for name in STUDY.names() if issubclass(STUDY[name], Ablation)]


def models(name, scale):
    return {run.row.name: planned_trained_model(run.config) for run in STUDY[name]().study_runs(scale, seeds=1)}


def record(row, seed, perplexity):
    return {
        "row": row,
        "seed": seed,
        "command": "linnet reproduce transnormer-table9 --scale cpu",
        "scale": "cpu",
        "config": {"task": "masked_lm", "train": {"steps": 5, "batch": 2, "lr": 0.003}, "data": {"context": 8}},
        "environment": {"threads": 1, "linnet": "1", "torch": "2"},
        "parameters": 1234,
        "tokens": 80,
        "seconds": 36.0,
        "curve": [],
        "valid": {"perplexity": perplexity},
        "test": {"perplexity": perplexity, "tokens": 12},
    }


@pytest.mark.parametrize("name", TABLES)
def test_both_scales_have_the_same_rows(name):
    small, whole = models(name, "cpu"), models(name, "paper")
    assert list(small) == list(whole)
    for row, model in small.items():
        assert (len(model.layers), len(whole[row].layers)) == (LAYERS["cpu"], LAYERS["paper"])
        assert (model.ffn, model.norm) == (whole[row].ffn, whole[row].norm)
        assert (model.ffn_width, whole[row].ffn_width) == (WIDTHS["cpu"][model.ffn], WIDTHS["paper"][model.ffn])
        assert list(dict.fromkeys(model.layers)) == list(dict.fromkeys(whole[row].layers))
        assert model.causal is whole[row].causal is False


@pytest.mark.parametrize("name", TABLES)
def test_rows_that_a_claim_rests_on_have_three_seeds_or_stay_open(name):
    study = STUDY[name]()
    seeds = {row.name: row.seeds for row in study.rows}
    for claim in study.comparisons:
        assert {claim.less, claim.more} <= seeds.keys()
    assert max(seeds.values()) == 3


def test_the_paper_scale_is_the_papers():
    planned = {run.run: run for run in STUDY["transnormer-table9"]().dry_run("paper")}
    t2 = planned["T2-seed0"]
    assert (t2.parameters, t2.steps, t2.tokens) == (124_672_473, 50_000, 50_000 * 512 * 512)
    assert t2.gpu_hours == pytest.approx(6 * t2.parameters * t2.tokens / (312e12 * 0.3) / 3600, rel=1e-3)
    assert planned["T2-norm-first-seed0"].parameters == t2.parameters


def test_rows_differ_in_what_they_name():
    table1, table10 = (models(f"transnormer-table{n}", "paper") for n in (1, 10))
    assert table1["1+elu without denominator"].options["elu"] == {"normalize": False}
    assert table1["NormAttention"].norm == table1["1+elu"].norm == "layer"
    assert table1["NormAttention"].options["norm"]["positions"] == "none"
    assert (table10["T2, FFN"].ffn, table10["T2, FFN"].norm) == ("ffn", "srms")
    assert table10["T2, FFN and LayerNorm"].norm == "layer"


def test_a_table_shows_differences_with_their_error_and_what_is_not_run():
    study = STUDY["transnormer-table9"]()
    records = [record("T2", seed, 50 + seed) for seed in range(3)]
    records += [record("T2, norm first", seed, 60 + 2 * seed) for seed in range(3)]
    text = study.to_markdown(records)
    assert "| T2, norm first | 1,234 | 3 | 0.003 | 62.00 (60.00 to 64.00) | 62.00 (60.00 to 64.00) | 36 |" in text
    assert "| T1 | not run | - |" in text
    assert "| T2 is better with DiagAttention first | holds |" in text
    assert "difference 11.00 ± 0.58 (standard error), 95 % interval 8.52 to 13.48" in text
    assert "Planned and not run, about 0.1 core-hours more: `T1-seed0`, `T1-norm-first-seed0`" in text
