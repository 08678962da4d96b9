"""A lower bound on the memory that training needs, computed before anything is built.

A lower bound never refuses a run that would fit. A run that passes may still need too much; then the system reports it.
"""

import contextlib
import os
import re
import resource
from pathlib import Path

import torch
from torch import nn

from linnet.models.config import ModelConfig
from linnet.tasks.base import Task

GIB = 1 << 30
PER_PARAMETER = 16  # bytes: a weight, its gradient and the two moments of Adam, in float32
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


def memory_of_device(device: str) -> int:
    """The bytes available to this process on a device, within any limit."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    found += [limit] if limit != resource.RLIM_INFINITY else []
    for path in LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            found.append(int(Path(path).read_text()))
    return min(found)


def memory_lack(
    task: Task, config: ModelConfig, model: nn.Module, memory: int, ranks: int = 1, parts: int = 1
) -> str | None:
    """Why a run does not fit into this many bytes, in one line; None if it may fit. `model` may be on the meta device.

    Each of `ranks` reads a part of the batch, and has one of so many `parts` of the model.
    """
    weights, batch = _weights(model) // parts, least_activations(task, config) // ranks
    if weights + batch <= memory:
        return None
    has = f"this machine has {memory / GIB:,.1f} GiB"
    if weights > memory:
        count = sum(parameter.numel() for parameter in model.parameters())
        need = f"{count:,} parameters, which take {weights / GIB:,.1f} GiB with gradients, Adam's state and buffers"
        return f"the model has {need}, and {has}: {_sizes(config, model)}"
    train, context = task.config.train, task.data.context
    return (
        f"the model takes {weights / GIB:,.1f} GiB and the activations of a batch at least {batch / GIB:,.1f} GiB, and "
        f"{has}: train.batch is {train.batch}, data.context {context}; train.accumulate makes up for a smaller batch"
    )


def least_training_memory(task: Task, config: ModelConfig, model: nn.Module) -> int:
    """The bytes that training needs at the least, besides the program itself."""
    return _weights(model) + least_activations(task, config)


def _weights(model: nn.Module) -> int:
    """Parameters with their gradients and the optimizer's state, and buffers."""
    trained = sum(parameter.numel() for parameter in model.parameters())
    return PER_PARAMETER * trained + sum(buffer.nbytes for buffer in model.buffers())


def least_activations(task: Task, config: ModelConfig) -> int:
    """What the backward pass needs of the forward pass: the inputs of each branch, features, and the logits."""
    tokens, predicted = task.at_once()
    layer = config.width + (0 if config.ffn == "none" else config.width + config.ffn_width)
    options = [config.options.get(name, {}) for layer in config.layers for name in re.findall(r"\w+", layer)]
    features = config.heads * sum(own.get("features") or 0 for own in options)
    size = 2 if task.config.train.precision == "bfloat16" else 4
    return size * (tokens * (len(config.layers) * layer + features) + predicted * config.vocab_size)


def _sizes(config: ModelConfig, model: nn.Module) -> str:
    """The fields that a model's size follows from, and its largest tensor."""
    fields = ("width", "ffn_width", "vocab_size", *(["max_length"] if config.positions == "learned" else []))
    sizes = ", ".join(f"model.{field} is {getattr(config, field)}" for field in fields)
    name, tensor = max([*model.named_parameters(), *model.named_buffers()], key=lambda pair: pair[1].numel())
    return f"{sizes}, with {len(config.layers)} layers; {name} alone is {' x '.join(map(str, tensor.shape))}"
