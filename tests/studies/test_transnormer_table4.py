"""Table 4: its rows at both scales, and its claims."""

from pathlib import Path

import pytest

from linnet.models.presets import preset
from linnet.registry import STUDY
from linnet.studies.claims import HOLDS, OPEN
from linnet.studies.trained import planned_trained_model

STUDIED = STUDY["transnormer-table4"]()
FOLDER = Path(__file__).parents[2] / "docs/results/transnormer-table4-cpu"


def test_vanilla_in_the_t2_frame_has_the_frame_of_t2_at_each_scale():
    for scale, width in (("cpu", 512), ("paper", 1365)):
        models = {
            study_run.row.name: planned_trained_model(study_run.config) for study_run in STUDIED.study_runs(scale)
        }
        framed, t2 = models["vanilla in the T2 frame"], models["T2"]
        assert framed.ffn_width == t2.ffn_width == width
        assert (framed.norm, framed.ffn, framed.activation) == (t2.norm, t2.ffn, t2.activation)
        assert set(framed.layers) == {"softmax"}
        assert framed.options["softmax"]["positions"] == "lrpe"
        planned = {run.run: run.parameters for run in STUDIED.dry_run(scale, seeds=1)}
        assert planned["vanilla-in-the-T2-frame-seed0"] == planned["T2-seed0"]


def test_the_papers_size_is_counted_to_the_last_parameter():
    planned = {run.run: run for run in STUDIED.dry_run("paper", only=["T2-seed0", "vanilla-seed0"])}
    assert planned["T2-seed0"].parameters == 155_988_156
    assert planned["vanilla-seed0"].parameters == 156_000_256
    assert planned["T2-seed0"].tokens == 100_000 * 128 * 512
    hours = 6 * 155_988_156 * 100_000 * 128 * 512 / (312e12 * 0.3) / 3600
    assert planned["T2-seed0"].gpu_hours == pytest.approx(hours, rel=1e-3)
    assert preset("transnormer_t2_lm").ffn_width == 1365


def test_a_claim_needs_several_seeds_on_both_sides():
    records = STUDIED.read(FOLDER)
    once = [record for record in records if record["row"] != "vanilla in the T2 frame" or record["seed"] == 0]
    claims = STUDIED.claims(once)
    assert [claim.verdict for claim in claims] == [HOLDS, OPEN, OPEN, OPEN]
    assert "vanilla in the T2 frame 70.32 (1 seed)" in claims[-1].evidence
    assert "vanilla in the T2 frame 69.49 (3 seeds)" in STUDIED.claims(records)[-1].evidence


def test_rows_are_in_the_order_of_the_first_seed_of_every_row():
    order = [(study_run.row.name, study_run.seed) for study_run in STUDIED.study_runs("cpu")]
    assert [seed for _, seed in order] == [0] * 16 + [1] * 4 + [2] * 4
    assert order[16:19] == [("T2", 1), ("vanilla", 1), ("vanilla with LRPE", 1)]
    assert len(STUDIED.study_runs("cpu", seeds=1)) == 16
