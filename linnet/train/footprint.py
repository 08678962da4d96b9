"""The memory that each rank of a run needs, estimated on the meta device: nothing is allocated.

Parameters, gradients and the optimizer's state are exact. Activations are what autograd saves in a forward pass of
PyTorch's own path on one rank's rows; the compiled kernels save less, and a GPU's allocator adds some percent.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from linnet.config import RunConfig
from linnet.distributed.spread import mesh_of_ranks, part_rows
from linnet.models.backbone import Model
from linnet.tasks.base import Batch, Task
from linnet.train.device import pick_device
from linnet.train.memory import least_activations

FLOAT = 4  # bytes of a weight, a gradient and a moment


def rank_footprint(task: Task, config: RunConfig, model: Model, world: int, batch: Batch | None) -> dict[str, Any]:
    """Bytes of rank 0, which has the most, by what they are for; `model` is on the meta device.

    `batch` is what the rank reads at once; None, where the data are not prepared yet, gives a bound from below.
    """
    shard = 1 if config.distributed is None else mesh_of_ranks(config.distributed, world)["shard"]
    own = sum(_own_size(parameter, shard) for parameter in model.parameters())
    least = least_activations(task, model.config) // world
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    bytes_of = {
        "parameters": FLOAT * own + buffers,
        "gradients": FLOAT * own,
        "optimizer": 2 * FLOAT * own,
        "gathered": _gathered(model, config) if shard > 1 else 0,
        "activations": least if batch is None else _activations(task, config, model, batch),
    }
    return {"ranks": world, **bytes_of, "total": sum(bytes_of.values())}


class _Asked(Exception):
    """The arguments with which a task calls its model."""


class _Asking(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        raise _Asked(args, kwargs)


def _call(task: Task, batch: Batch) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the model for a batch, on the meta device; the loss itself would read numbers."""
    try:
        task.loss(_Asking(), batch)
    except _Asked as asked:
        args, kwargs = asked.args
        meta = {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in kwargs.items()}
        return [tensor.to("meta") for tensor in args], meta
    raise AssertionError("a task computes its loss from the output of the model")


def _own_size(parameter: Tensor, shard: int) -> int:
    """The numbers of a parameter that rank 0 has."""
    if shard == 1 or not parameter.dim():
        return parameter.numel()
    return part_rows(parameter.shape[0], 0, shard)[1] * math.prod(parameter.shape[1:])


def _gathered(model: Model, config: RunConfig) -> int:
    """Whole weights during a pass: what is outside the blocks, one block and the next one, which is fetched ahead."""
    size = 2 if config.train.precision == "bfloat16" else FLOAT
    blocks = sorted((_count(block.parameters()) for block in model.blocks), reverse=True)
    rest = _count(model.parameters()) - sum(blocks)
    return FLOAT * rest + size * sum(blocks[:2])


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _activations(task: Task, config: RunConfig, model: Model, batch: Batch) -> int:
    """What the backward pass needs of the forward pass on the largest part of a rank's rows."""
    if pick_device(config.train).type == "cpu":
        batch = max(task.parts(batch), key=lambda part: sum(t.numel() for t in part.values()))
    half = config.train.precision == "bfloat16"
    model = model.to(torch.bfloat16) if half else model
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage
        return tensor

    args, kwargs = _call(task, batch)
    model.train()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(*args, **kwargs)
    found = sum(storage.nbytes() for storage in saved.values()) + FLOAT * logits.numel()  # of the cross entropy
    if config.distributed is None or not config.distributed.activation_checkpointing:
        return found
    layers, width = len(model.blocks), model.config.width
    inputs = (2 if half else FLOAT) * task.batch_tokens(batch) * width
    return layers * inputs + found // layers
