"""Learning rates at the points that the papers' settings determine."""

from itertools import pairwise

import pytest
import torch

from linnet.config import TrainConfig, load_recipe_config
from linnet.train.schedule import scheduled_first_beta, scheduled_learning_rate


def rates(train: TrainConfig, *updates: int) -> list[float]:
    return [scheduled_learning_rate(train, n) for n in updates]


def test_the_warm_up_is_a_straight_line_from_the_first_update():
    train = TrainConfig(steps=100, lr=1e-3, warmup=10, warmup_lr=1e-4, schedule="constant")
    found = rates(train, *range(1, 14))
    assert found[0] == 1e-4
    assert found[5] == pytest.approx(5.5e-4)  # five updates are done, half of the way
    assert found[10:] == [1e-3] * 3  # the first after ten
    steps = [after - before for before, after in pairwise(found[:11])]
    assert steps == pytest.approx([9e-5] * 10)


def test_inverse_sqrt_counts_as_fairseq():
    """fairseq sets the rate of update n by the n - 1 updates before it; warmup has 8000 steps of 6.24875e-8."""
    train = load_recipe_config("transnormer_lm").train
    assert rates(train, 1, 2, 8001) == pytest.approx([1e-7, 1e-7 + 6.24875e-8, 5e-4], rel=1e-12)
    assert rates(train, 8000) == pytest.approx([5e-4 - 6.24875e-8])
    assert rates(train, 32_001, 18_001) == pytest.approx([2.5e-4, 5e-4 * 2 / 3])


def test_inverse_sqrt_without_warm_up():
    train = TrainConfig(steps=20, lr=1.0, min_lr=0.3, schedule="inverse_sqrt")
    assert rates(train, 1, 2, 5, 17) == pytest.approx([1.0, 1.0, 0.5, 0.3])


def test_polynomial_counts_as_fairseq():
    """Warmup starts at 0, so the first update changes nothing; the decay would end one update after the last."""
    train = load_recipe_config("transnormer_roberta").train
    assert rates(train, 1, 2, 3001) == pytest.approx([0.0, 5e-4 / 3000, 5e-4])
    assert rates(train, 26_501, 50_000) == pytest.approx([2.5e-4, 5e-4 / 47_000])
    square = TrainConfig(steps=10, lr=1.0, schedule="polynomial", power=2.0)
    assert rates(square, 1, 6, 10, 11) == pytest.approx([1.0, 0.25, 0.01, 0.0])


def test_cosine_is_a_half_wave_that_ends_at_the_last_update():
    train = TrainConfig(steps=111, lr=1.0, min_lr=0.2, warmup=10, schedule="cosine")
    assert rates(train, 1, 10, 11, 61, 111) == pytest.approx([0.0, 0.9, 1.0, 0.6, 0.2])
    assert rates(train, 36) == pytest.approx([0.2 + 0.8 * (2 + 2**0.5) / 4])  # a quarter of the way


@pytest.mark.parametrize("schedule", ["constant", "cosine", "inverse_sqrt", "polynomial", "one_cycle"])
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (5, 5), (7, 0), (40, 8)])
def test_every_rate_is_usable_and_falls_after_the_warm_up(schedule, steps, warmup):
    train = TrainConfig(steps=steps, warmup=warmup, warmup_lr=0.01, schedule=schedule, lr=0.5, min_lr=0.01)
    found = rates(train, *range(1, steps + 1))
    assert all(0 < rate <= 0.5 for rate in found)
    late = found[warmup:]
    assert late == sorted(late, reverse=True)


@pytest.mark.parametrize(("steps", "warmup"), [(50, 10), (7, 3), (200, 20)])
def test_one_cycle_is_that_of_torch(steps, warmup):
    lr = 1e-4
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr, betas=(0.9, 0.999))
    share = warmup / steps
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=share, anneal_strategy="linear")
    train = TrainConfig(
        steps=steps, warmup=warmup, lr=lr, warmup_lr=lr / 25, min_lr=lr / 25 / 1e4,
        schedule="one_cycle", betas=(0.95, 0.999), peak_beta1=0.85,
    )  # fmt: skip
    for n in range(1, steps + 1):
        (group,) = optimizer.param_groups
        assert scheduled_learning_rate(train, n) == pytest.approx(group["lr"], rel=1e-9), n
        assert scheduled_first_beta(train, n) == pytest.approx(group["betas"][0], rel=1e-9), n
        optimizer.step()
        theirs.step() if n < steps else None


def test_the_first_beta_is_constant_without_peak_beta1():
    assert scheduled_first_beta(TrainConfig(betas=(0.8, 0.9)), 5) == 0.8
