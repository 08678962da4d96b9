"""Attribution: the combinations, and main effects over those that are there."""

import math

from linnet.registry import STUDY
from linnet.studies.attribution import CELLS, FACTORS, _name, attribution_effect, attribution_scores
from linnet.studies.trained import planned_trained_model

STUDIED = STUDY["attribution"]()


def record(cell, seed, loss, task="causal_lm"):
    test = {"perplexity": math.exp(loss), "accuracy": loss}
    return {"row": _name(cell), "seed": seed, "config": {"task": task}, "test": test}


def test_a_combination_has_its_attention_positions_and_frame():
    for scale, layers in (("cpu", 4), ("paper", 6)):
        for run in STUDIED.study_runs(scale, seeds=1):
            model, (attention, positions, frame) = planned_trained_model(run.config), run.row.name.split(", ")
            assert model.options[attention]["positions"] == positions
            assert (model.norm, model.ffn) == (("srms", "glu") if frame == "T2 frame" else ("layer", "ffn"))
            own = ("diag", attention) if run.config.task == "recall" else (attention,) * layers
            assert model.layers == own
    assert len(STUDIED.runs("cpu")) == 2 * 3 * len(CELLS) == 96


def test_main_effects_of_an_additive_model():
    effects = {
        "softmax": 0.0,
        "elu": 0.3,
        "norm": 0.2,
        "lln": 0.1,
        "none": 0.0,
        "lrpe": -0.5,
        "vanilla": 0.0,
        "T2": -0.2,
    }
    records = [
        record(cell, seed, 4 + seed + sum(effects[level] for level in cell)) for cell in CELLS for seed in (0, 1)
    ]
    found = attribution_scores(records, "causal_lm")
    for factor, (_, *others) in enumerate(FACTORS.values()):
        for level in others:
            assert all(math.isclose(x, effects[level]) for x in attribution_effect(found, factor, level))


def test_missing_combinations_leave_only_pairs_that_differ_in_one_thing():
    records = [
        record(("elu", "none", "vanilla"), 0, 4.0),
        record(("softmax", "none", "vanilla"), 0, 3.0),
        record(("elu", "lrpe", "T2"), 0, 1.0),
    ]
    found = attribution_scores(records, "causal_lm")
    assert attribution_effect(found, 0, "elu") == [1.0]
    assert attribution_effect(found, 1, "lrpe") == []
