"""Attention maps: the weights themselves, pooled to a size that fits on a screen."""

from typing import ClassVar

import torch
from torch import Tensor

from linnet.errors import InputError
from linnet.instruments.base import DIVIDED, Instrument, View, instrument_view_of_weights
from linnet.registry import INSTRUMENT

LARGEST = 256  # rows and columns of a map


def attention_map(weights: Tensor, size: int = LARGEST) -> Tensor:
    """Pool weights (..., N, N) to (..., n, n) with n = min(N, size).

    Rows of a pool are averaged and its columns added, so each row of a map still sums to one.
    """
    found = pooled_attention_map(instrument_view_of_weights(weights), size)
    return found.reshape(*weights.shape[:-2], *found.shape[2:])


def pooled_attention_map(view: View, size: int = LARGEST, signed: bool = True) -> Tensor:
    """(B,H,n,n): the weights of a view, with rows divided by their sum; absolute values if not `signed`."""
    if size < 1:
        raise InputError(f"size is {size}: it must be at least 1")
    B, H, N = view.shape
    n = min(N, size)
    pool = torch.arange(N) * n // N  # (N,): the pool of each token
    found, count = torch.zeros(B, H, n, n, dtype=torch.float64), torch.zeros(B, H, n, 1, dtype=torch.float64)
    for start, A in view.stochastic() if signed else view.positive():
        there = ~A[..., :1].isnan()
        columns = torch.zeros(*A.shape[:3], n, dtype=torch.float64).index_add_(3, pool, torch.where(there, A, 0))
        mine = pool[start : start + A.shape[2]]
        found.index_add_(2, mine, columns)
        count.index_add_(2, mine, there.double())
    return found / count.clamp(min=1)  # M43


@INSTRUMENT.add("attention_map")
class AttentionMap(Instrument):
    """Which token reads which."""

    what = "which token reads which: the weights, pooled above 256 tokens"
    paper = "The Devil in Linear Transformer, EMNLP 2022, arXiv 2210.10340"
    shows: ClassVar = {}

    def note(self, view: View) -> str | None:
        return None if view.normalized else DIVIDED

    def measure(self, view: View) -> dict[str, Tensor]:
        return {"map": pooled_attention_map(view)}
