"""The metrics against scikit-learn and scipy, and on one-sided answers."""

import numpy as np
import pytest
from scipy import stats

from linnet.tasks.metrics import METRICS

sklearn = pytest.importorskip("sklearn.metrics")


@pytest.mark.parametrize("seed", range(5))
def test_classes_agree_with_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    truth, guess = rng.integers(0, 2, (2, 50)).astype(float)
    assert METRICS["accuracy"](truth, guess) == pytest.approx(sklearn.accuracy_score(truth, guess), abs=1e-12)
    assert METRICS["f1"](truth, guess) == pytest.approx(sklearn.f1_score(truth, guess), abs=1e-12)
    assert METRICS["matthews"](truth, guess) == pytest.approx(sklearn.matthews_corrcoef(truth, guess), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_scores_agree_with_scipy(seed):
    rng = np.random.default_rng(seed)
    truth, guess = rng.integers(0, 6, 60) / 1.0, rng.normal(size=60).round(1)  # both have equal numbers
    assert METRICS["pearson"](truth, guess) == pytest.approx(stats.pearsonr(truth, guess)[0], abs=1e-12)
    assert METRICS["spearman"](truth, guess) == pytest.approx(stats.spearmanr(truth, guess)[0], abs=1e-12)


@pytest.mark.parametrize("name", ["f1", "matthews", "pearson", "spearman"])
def test_constant_answers_score_zero(name):
    assert METRICS[name](np.array([0.0, 1.0, 0.0]), np.zeros(3)) == 0
    assert METRICS[name](np.zeros(3), np.zeros(3)) == 0
