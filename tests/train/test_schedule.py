"""Learning rates at the points that the papers' settings fix."""

from itertools import pairwise

import pytest

from linnet.config import TrainConfig, load_recipe
from linnet.train.schedule import learning_rate


def test_the_warm_up_is_a_straight_line():
    train = TrainConfig(steps=100, lr=1e-3, warmup=10, warmup_lr=1e-4, schedule="constant")
    rates = [learning_rate(train, n) for n in range(1, 13)]
    assert rates[0] == pytest.approx(1e-4 + 9e-4 / 10)
    assert rates[9:] == pytest.approx([1e-3] * 3)
    steps = [after - before for before, after in pairwise(rates[:10])]
    assert steps == pytest.approx([steps[0]] * 9)


def test_inverse_sqrt():
    train = load_recipe("transnormer_lm").train
    assert learning_rate(train, 8000) == pytest.approx(5e-4)
    assert learning_rate(train, 32_000) == pytest.approx(2.5e-4)
    assert learning_rate(train, 1) == pytest.approx(1e-7 + (5e-4 - 1e-7) / 8000)


def test_polynomial_goes_to_the_end():
    train = load_recipe("transnormer_roberta").train
    assert learning_rate(train, 3000) == pytest.approx(5e-4)
    assert learning_rate(train, 26_501) == pytest.approx(2.5e-4)
    assert learning_rate(train, 50_000) == pytest.approx(5e-4 / 47_000)
    square = TrainConfig(steps=10, lr=1.0, schedule="polynomial", power=2.0)
    assert learning_rate(square, 6) == pytest.approx(0.25)


def test_cosine_is_a_half_wave_to_the_least_rate():
    train = TrainConfig(steps=110, lr=1.0, min_lr=0.2, warmup=10, schedule="cosine")
    assert [learning_rate(train, n) for n in (10, 11, 61, 111)] == pytest.approx([1.0, 1.0, 0.6, 0.2])


@pytest.mark.parametrize("schedule", ["constant", "cosine", "inverse_sqrt", "polynomial"])
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (5, 5), (7, 0), (40, 8)])
def test_every_rate_is_usable_and_falls_after_the_warm_up(schedule, steps, warmup):
    train = TrainConfig(steps=steps, warmup=warmup, schedule=schedule, lr=0.5, min_lr=0.01)
    rates = [learning_rate(train, n) for n in range(1, steps + 1)]
    assert all(0 < rate <= 0.5 for rate in rates)
    late = rates[max(warmup - 1, 0) :]
    assert late == sorted(late, reverse=True)
