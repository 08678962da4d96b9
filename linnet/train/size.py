"""The size of a run before it is done: its updates, samples and tokens."""

from typing import Any, cast

from linnet.config import RunConfig
from linnet.registry import TASK
from linnet.train.pretraining import pretrain_length


def size_in_updates(config: RunConfig) -> int:
    """Updates of a run, those of its pretraining included."""
    return config.train.steps + pretrain_length(config)


def size_in_samples(config: RunConfig) -> int:
    """Samples that a run draws, those of its pretraining included."""
    return size_in_updates(config) * config.train.batch * config.train.accumulate


def size_in_tokens(config: RunConfig) -> int:
    """Tokens that a run and its pretraining read at most: padding counts."""
    task, data = TASK[config.task], cast(Any, config.data)
    sequences = config.train.steps * task.sequences(data)
    if config.pretrain:
        sequences += pretrain_length(config) * task.sequences(task.denoising(data))
    return int(sequences * config.train.batch * config.train.accumulate * data.context)
