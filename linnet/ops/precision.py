"""Shared by the ops: the type of a state, the precision of sums, and the numbers that guard a division."""

import contextlib

import torch
from torch import Tensor

State = tuple[Tensor, ...]
EPS = 1e-6  # a normalizer of linear attention is at least this
FLOOR = -1e30  # the maximum of no exponents: e^(-inf - FLOOR) is 0, while e^(-inf + inf) would be NaN


def accumulator_precision(dtype: torch.dtype) -> torch.dtype:
    """The type of states and sums: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def keep_precision(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """A context in which autocast does not round what an op computes; some devices have no autocast."""
    if device.type in ("cpu", "cuda"):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
