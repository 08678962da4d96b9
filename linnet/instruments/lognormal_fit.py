"""Log-normal fit of attention weights: mean, variance and skew of ln A, and its distance from a normal distribution."""

import math
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from linnet.instruments.base import Instrument, View, instrument_view_of_weights
from linnet.instruments.entropy import ABSOLUTE
from linnet.instruments.temperature import FLAT, temperature_score_variance
from linnet.registry import INSTRUMENT

BINS = 1 << 14
LEVELS = (torch.arange(99, dtype=torch.float64) + 1) / 100  # of the quantiles


class LognormalFit(NamedTuple):
    """The distribution of ln A, (...) each; if A is log-normal, skew and ks are 0 and mean = -ln N - variance / 2."""

    mean: Tensor
    variance: Tensor
    skew: Tensor
    ks: Tensor  # the largest distance from the normal distribution with this mean and variance
    quantiles: Tensor  # (..., 99): 1 % to 99 %


def lognormal_fit(weights: Tensor) -> LognormalFit:
    """The fit of ln |A| over all entries of weights (..., N, N), without those that are 0."""
    found = fit_lognormal_view(instrument_view_of_weights(weights))
    return LognormalFit(*(value.reshape(weights.shape[:-2] + value.shape[2:]) for value in found))


def fit_lognormal_view(view: View) -> LognormalFit:
    """The fit (B,H) in two passes over the rows: moments, then a histogram fine enough to replace the distribution.

    A causal row of n tokens is shifted by ln(n/N), so that all rows are compared with the same flat row.
    """
    B, H, N = view.shape
    flat = torch.zeros(B, H, dtype=torch.float64)
    count, mean, low, high = flat, flat, flat + math.inf, flat - math.inf
    for x, there in _logs(view):
        count = count + there.sum(dim=(2, 3))
        mean = mean + torch.where(there, x, 0).sum(dim=(2, 3))
        low = torch.minimum(low, torch.where(there, x, math.inf).amin(dim=(2, 3)))
        high = torch.maximum(high, torch.where(there, x, -math.inf).amax(dim=(2, 3)))
    mean = mean / count
    second, third, counts = flat, flat, torch.zeros(B, H, BINS, dtype=torch.int64)
    width = ((high - low) / BINS).clamp(min=1e-12)
    for x, there in _logs(view):
        centered = torch.where(there, x - mean[..., None, None], 0)
        second = second + centered.square().sum(dim=(2, 3))
        third = third + centered.pow(3).sum(dim=(2, 3))
        place = ((x - low[..., None, None]) / width[..., None, None]).clamp(0, BINS - 1).long()
        place = torch.where(there, place + BINS * torch.arange(B * H).view(B, H, 1, 1), B * H * BINS)
        counts += place.flatten().bincount(minlength=B * H * BINS + 1)[:-1].view(B, H, BINS)
    variance = second / count
    skew = torch.where(variance > FLAT, third / count / variance.clamp(min=FLAT) ** 1.5, 0)  # M42
    return LognormalFit(mean, variance, skew, *_distribution(counts, low, width, mean, variance))


def _logs(view: View) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (ln |A|, A != 0) by rows."""
    shift = (view.seen / view.shape[2]).log()
    for start, A in view.rows():
        there = A != 0
        yield torch.where(there, A.abs(), 1).log() + shift[start : start + A.shape[2], None], there


def _distribution(counts: Tensor, low: Tensor, width: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """KS distance (B,H) from the normal distribution, and quantiles (B,H,99), of a histogram (B,H,BINS)."""
    reached = counts.cumsum(dim=2) / counts.sum(dim=2, keepdim=True).double()  # at the upper edge of each bin
    edges = low[..., None] + width[..., None] * torch.arange(1, BINS + 1)
    normal = torch.special.ndtr((edges - mean[..., None]) / variance[..., None].sqrt())
    first = torch.special.ndtr((low - mean) / variance.sqrt())  # the distribution is 0 below the smallest value
    ks = torch.where(variance > FLAT, torch.maximum((reached - normal).abs().amax(dim=2), first), 0)
    place = torch.searchsorted(reached, LEVELS.expand(*reached.shape[:2], -1).contiguous())
    return ks, edges.gather(2, place.clamp(max=BINS - 1))


@INSTRUMENT.add("lognormal_fit")
class Lognormal(Instrument):
    """The distribution of ln A, beside the variance that q and k predict for softmax."""

    what = "the distribution of ln A: mean, variance against sigma_q^2 sigma_k^2, skew, distance from normal, quantiles"
    paper = "Linear Log-Normal Attention with Unbiased Concentration, ICLR 2024, arXiv 2311.13541"
    shows: ClassVar = {"variance": "Var ln A", "predicted": "q and k predict", "skew": "skew", "ks": "KS"}

    def note(self, view: View) -> str | None:
        return ABSOLUTE if view.signed else None

    def measure(self, view: View) -> dict[str, Tensor]:
        found = fit_lognormal_view(view)._asdict()
        if view.q is not None and view.k is not None:
            found["predicted"] = temperature_score_variance(view.q, view.k)
        return found
