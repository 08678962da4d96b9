"""The learning rate as a pure function of the update's number."""

import math

from linnet.config import TrainConfig


def learning_rate(train: TrainConfig, n: int) -> float:
    """The rate of update n, counted from 1, as fairseq counts: what decides is the number m = n - 1 of updates before.

    A straight line goes from `warmup_lr`, the rate of the first update, to `lr`, that of the first after `warmup`
    updates. Then the rate stays ("constant"), falls with the root of m ("inverse_sqrt"), reaches `min_lr` at the last
    update along a half cosine ("cosine"), or would reach it one update later, as the remaining share to the power
    `power` ("polynomial").
    """
    m, warmup = n - 1, train.warmup
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
