"""mlm_small: its rates are those of the committed search, its frame is what the study of the plateau found."""

import math
from pathlib import Path

import numpy as np
import pytest

from linnet.config import load_recipe_config
from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies.ablation import RATES
from linnet.studies.mlm_rates import best_rates
from linnet.studies.trained import planned_trained_model
from linnet.train.run import start_run

RESULTS = Path(__file__).parents[2] / "docs/results"
SEARCH, PLATEAU = STUDY["mlm-rates"](), STUDY["mlm-plateau"]()


def test_the_rates_of_the_ablations_are_the_best_of_the_search():
    best = best_rates(SEARCH.read(RESULTS / "mlm-rates-cpu"))
    assert best == {name: RATES[name] for name in best}
    assert len(best) == 4


def test_a_rate_is_chosen_on_validation():
    def record(rate, valid, test):
        config = {"train": {"lr": rate}}
        return {
            "row": f"T2 at {rate:g}",
            "config": config,
            "valid": {"perplexity": valid},
            "test": {"perplexity": test},
        }

    assert best_rates([record(0.1, 5.0, 2.0), record(0.2, 4.0, 3.0)]) == {"T2": 0.2}


def test_the_last_change_of_the_plateau_is_the_recipe():
    models = {run.row.name: planned_trained_model(run.config) for run in PLATEAU.study_runs("cpu")}
    recipe = planned_trained_model(load_recipe_config("mlm_small", ["model.preset=vanilla_roberta_small"]))
    whole = models["vanilla, all but LRPE"]
    for field in ("positions", "embedding_scale", "embedding_norm", "norm_position", "final_norm", "init", "dropout"):
        assert getattr(whole, field) == getattr(recipe, field)
        changed = [name for name, model in models.items() if getattr(model, field) != getattr(models["vanilla"], field)]
        assert set(changed) <= {name for name in models if name.startswith("vanilla, ")}
    assert models["vanilla, Xavier init"].init == "xavier"
    assert {name for name, model in models.items() if model.options.get("softmax", {}).get("positions")} == {
        "vanilla, LRPE"
    }


def test_xavier_alone_leaves_the_plateau_of_frequencies():
    found = {record["row"]: record for record in PLATEAU.read(RESULTS / "mlm-plateau-cpu")}
    share = {name: record["valid"]["perplexity"] / record["plateau"] for name, record in found.items()}
    assert share["vanilla, Xavier init"] < 0.85
    assert min(share[f"vanilla, {name}"] for name in ("LRPE", "sinusoidal positions", "norm before branches")) > 0.95


def test_the_plateau_is_the_perplexity_of_guessing_by_frequency(tmp_path):
    """Three bytes of five are the same in every split, and the other two are equally frequent."""
    (tmp_path / "text.txt").write_text("aaab\n" * 4000)
    sets = (
        *("task=masked_lm", "data.corpus=text", "data.tokenizer=bytes", "data.context=16", "train.steps=1"),
        *("model.preset=vanilla_roberta_small", 'model.layers=["softmax"]', "model.width=16", "model.heads=2"),
        *("train.eval_batches=1", "train.threads=1", f"data.path={tmp_path / 'text.txt'}"),
    )
    outcome = start_run(load_recipe_config("smoke", sets), tmp_path / "run", Screen(quiet=True))
    p = np.array([0.6, 0.2, 0.2])
    assert PLATEAU.readings(outcome.run, [])["plateau"] == pytest.approx(math.exp(-(p * np.log(p)).sum()), rel=0.05)
