"""The learning rate, and the first beta if it varies too, as pure functions of the update's number."""

import math

from linnet.config import TrainConfig


def scheduled_learning_rate(train: TrainConfig, n: int) -> float:
    """The rate of update n, counted from 1. As in fairseq, it depends on m = n - 1, the number of updates before.

    Warmup is linear from `warmup_lr`, the rate of the first update, to `lr`, the rate of the first update after
    `warmup` updates. Then the rate stays ("constant"), falls as 1 / sqrt(m) ("inverse_sqrt"), follows a half cosine to
    `min_lr` at the last update ("cosine"), or falls as the remaining share to the power `power` and would reach
    `min_lr` one update after the last ("polynomial"). With "one_cycle" the rate rises linearly to `lr` at update
    `warmup` and falls linearly after it.
    """
    m, warmup = n - 1, train.warmup
    if train.schedule == "one_cycle":
        share = _one_cycle(train, n)
        return share * train.lr + (1 - share) * (train.warmup_lr if n <= warmup else train.min_lr)
    if m < warmup:
        return train.warmup_lr + (train.lr - train.warmup_lr) * m / warmup
    if train.schedule == "constant":
        return train.lr
    if train.schedule == "inverse_sqrt":
        first = max(warmup, 1)
        return max(train.min_lr, train.lr * math.sqrt(first / max(m, first)))
    if train.schedule == "cosine":
        done = min(1.0, (m - warmup) / max(train.steps - 1 - warmup, 1))
        share = (1 + math.cos(math.pi * done)) / 2
    else:
        share = max(0.0, 1 - (m - warmup) / max(train.steps - warmup, 1)) ** train.power
    return train.min_lr + (train.lr - train.min_lr) * share


def _one_cycle(train: TrainConfig, n: int) -> float:
    """The position of update n in the cycle: rises from 0 to 1 at the highest rate and falls back to 0."""
    m, top = n - 1, train.warmup - 1
    if m <= top:
        return m / top if top else 1.0
    return max(0.0, (train.steps - 1 - m) / max(train.steps - 1 - top, 1))


def scheduled_first_beta(train: TrainConfig, n: int) -> float:
    """The first beta of update n; it moves to `peak_beta1`, if that is set, and back together with the rate."""
    if train.peak_beta1 is None:
        return train.betas[0]
    share = _one_cycle(train, n)
    return share * train.peak_beta1 + (1 - share) * train.betas[0]
