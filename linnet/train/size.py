"""The size of a run before it is done: its updates, samples and tokens."""

from typing import Any, cast

from linnet.config import RunConfig
from linnet.registry import TASK
from linnet.train.pretraining import pretrain_length


def size_in_updates(config: RunConfig) -> int:
    """Updates of a run, including its pretraining."""
    return config.train.steps + pretrain_length(config)


def size_in_samples(config: RunConfig) -> int:
    """Samples that a run draws, including its pretraining."""
    return size_in_updates(config) * config.train.batch * config.train.accumulate


def size_in_tokens(config: RunConfig) -> int:
    """The most tokens that a run and its pretraining can read, including padding."""
    task, data = TASK[config.task], cast(Any, config.data)
    sequences = config.train.steps * task.sequences(data)
    if config.pretrain:
        sequences += pretrain_length(config) * task.sequences(task.denoising(data))
    return int(sequences * config.train.batch * config.train.accumulate * data.context)
