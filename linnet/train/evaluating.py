"""An evaluation over ranks: its batches are dealt out, and the sums of all ranks are those of one process."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from linnet.distributed.ranks import Ranks
from linnet.tasks.base import Sums, Task, add_task_sums
from linnet.train.signals import Stop


def evaluate_over_ranks(
    task: Task, model: nn.Module, split: str, batches: int, device: torch.device, ranks: Ranks, stop: Stop
) -> dict[str, Any] | None:
    """The metrics of a split or of `batches` batches of it, the same on every rank; None if a signal ends it early.

    A sharded model is called by all ranks or by none: a rank without a batch measures one that is not counted. Ranks
    that share a sequence read slices of the same batch.
    """
    reader, readers = task.share
    chosen = task.evaluation_batches(split, batches)
    training = model.training
    model.eval()
    sums: Sums = {}
    try:
        for start in range(0, len(chosen), readers):
            number = start + reader
            counted = number < len(chosen)
            parts = task.evaluation_parts(split, chosen[number if counted else 0], device)
            number_of_parts, signal = ranks.most(len(parts), stop.signal)
            stop.signal = stop.signal or int(signal)
            if signal:
                return None
            for i in range(int(number_of_parts)):
                with torch.no_grad():
                    found = task.measure(model, parts[min(i, len(parts) - 1)])
                own = counted and i < len(parts)
                sums = add_task_sums(sums, found if own else {name: 0 * value for name, value in found.items()})
    finally:
        model.train(training)
    return task.metrics(split, sum_over_ranks(sums, ranks))


def sum_over_ranks(sums: Sums, ranks: Ranks) -> Sums:
    """The sums of all ranks, of the same names, types and shapes as those of each."""
    names = sorted(sums)
    flat = [np.asarray(sums[name], np.float64).ravel() for name in names]
    total = np.array(ranks.sums(*np.concatenate(flat)))
    parts: Sequence[Any] = np.split(total, np.cumsum([len(each) for each in flat])[:-1])
    found: Sums = {}
    for name, part in zip(names, parts, strict=True):
        value = sums[name]
        array = isinstance(value, np.ndarray)
        found[name] = part.reshape(value.shape).astype(value.dtype) if array else type(value)(part[0])
    return found
