"""Relative standard deviation of gradients over training: how much the gradient norm varies.

This is how linnet reads TransNormer's Table 2: g_t is the L2 norm of the gradient of update t before clipping, over
all parameters or those of one layer, and the number is std(g_1 .. g_T) / mean(g_1 .. g_T) over all updates.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from linnet.errors import InputError
from linnet.instruments.base import Instrument
from linnet.registry import INSTRUMENT

READING = "std / mean of the gradient's L2 norm before clipping, over all updates"


def gradient_deviation(norms: Tensor) -> Tensor:
    """std / mean (...) over the updates of norms (T, ...)."""
    if norms.dim() < 1 or norms.shape[0] < 2 or not bool(norms.isfinite().all()):
        raise InputError(f"norms have shape {tuple(norms.shape)}: it must be (T, ...), finite, of two updates or more")
    return norms.double().std(dim=0, correction=0) / norms.double().mean(dim=0)  # M46


def gradient_deviation_of_records(records: Sequence[Mapping[str, Any]]) -> Tensor | None:
    """(1 + L,): for all parameters, then for each layer, from a run's training records; None without such records.

    A record covers the updates since the previous one: their number, mean norms and mean squared norms.
    """
    parts = {"grad_means": list, "grad_squares": list, "updates": int}
    known = [r for r in records if all(isinstance(r.get(key), kind) for key, kind in parts.items())]
    if not known or len({len(r["grad_means"]) for r in known} | {len(r["grad_squares"]) for r in known}) != 1:
        return None
    weight = torch.tensor([r["updates"] for r in known], dtype=torch.float64)[:, None]
    found = [torch.tensor([r[key] for r in known], dtype=torch.float64) for key in ("grad_means", "grad_squares")]
    mean, square = ((x * weight).sum(dim=0) / weight.sum() for x in found)
    return (square - mean.square()).clamp(min=0).sqrt() / mean  # M46


@INSTRUMENT.add("gradient_deviation")
class GradientDeviation(Instrument):
    """Overall and per layer, from the records of a run."""

    what = f"how much gradients jump while training: {READING}"
    paper = "The Devil in Linear Transformer, EMNLP 2022, arXiv 2210.10340"
    shows: ClassVar = {"deviation": "gradient deviation"}
    reads = "gradients"
