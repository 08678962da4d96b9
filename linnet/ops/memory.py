"""The memory layout that kernels need: adjacent numbers within a head, states without gaps."""

import torch
from torch import Tensor

Maybe = Tensor | None


def memory_rows(x: Tensor) -> Tensor:
    """x with adjacent numbers in its last axis, which is all that kernels require."""
    x = x.resolve_neg()
    if x.stride(-1) == 1:
        return x
    once = x
    for axis in range(x.dim() - 1):  # repeated numbers, as in the gradient of a sum, are copied once
        once = once.narrow(axis, 0, 1) if x.stride(axis) == 0 and x.shape[axis] > 1 else once
    return once.contiguous().expand(x.shape)


def empty_memory_rows(x: Tensor) -> Tensor:
    """An empty tensor with the strides of x, if the kernels can write to those."""
    y = torch.empty_like(x)  # if x overlaps itself, the last axis need not come last in memory
    return y if y.stride(-1) == 1 else torch.empty_like(x, memory_format=torch.contiguous_format)


def dense_memory(x: Maybe) -> Maybe:
    """A state, a mask, or the numbers of tokens, without gaps."""
    return None if x is None else x.resolve_neg().contiguous()
