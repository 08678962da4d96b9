"""What the ops share: the type of a state, the width of sums, and the numbers that guard a division."""

import contextlib

import torch
from torch import Tensor

State = tuple[Tensor, ...]
EPS = 1e-6  # a normalizer of linear attention is at least this
FLOOR = -1e30  # the largest of no exponents: e^(-inf - FLOOR) is 0, where e^(-inf + inf) would be NaN


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The type of states and sums: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def no_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Inside, autocast does not round what an op computes; some devices know no autocast."""
    if device.type in ("cpu", "cuda"):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
