"""The learning rate as a pure function of the update's number."""

import math

from linnet.config import TrainConfig


def learning_rate(train: TrainConfig, n: int) -> float:
    """The rate of update n, counted from 1.

    A straight line from `warmup_lr` reaches `lr` at update `warmup`. After it the rate stays ("constant"),
    falls with the root of n ("inverse_sqrt"), or goes to `min_lr` at the end along a half cosine ("cosine") or
    as the remaining share to the power `power` ("polynomial").
    """
    if n < train.warmup:
        return train.warmup_lr + (train.lr - train.warmup_lr) * n / train.warmup
    if train.schedule == "constant":
        return train.lr
    if train.schedule == "inverse_sqrt":
        return max(train.min_lr, train.lr * math.sqrt(max(train.warmup, 1) / n))
    left = min(1.0, 1 - (n - 1 - train.warmup) / max(train.steps - train.warmup, 1))  # share of the decay to come
    share = (1 - math.cos(math.pi * left)) / 2 if train.schedule == "cosine" else left**train.power
    return train.min_lr + (train.lr - train.min_lr) * share
