"""Locally accumulated attention score: how wide a neighborhood of a token holds a share of its attention.

The procedure of TransNormer's appendix: start at the token itself, add its left neighbor, its right one, the next left
one and so on, within the sequence; record the size at which the mass first reaches each of 100 thresholds. In a
picture the neighborhood grows by the distance between patches, and the order of equally distant ones is fixed.
"""

from typing import ClassVar

import torch
from torch import Tensor

from linnet.instruments.base import DIVIDED, Instrument, View, instrument_view_of_weights
from linnet.registry import INSTRUMENT

THRESHOLDS = torch.linspace(0, 1, 100, dtype=torch.float64)
SLACK = 1e-6  # mass that rounding may lose


def local_score(weights: Tensor) -> Tensor:
    """(..., 100): the share of the sequence that holds 0, 1/99, ..., 1 of a row's mass around its token.

    The mean over the rows of weights (..., N, N). A low curve means local attention, the diagonal diluted attention.
    """
    return local_score_curve(instrument_view_of_weights(weights)).reshape(*weights.shape[:-2], len(THRESHOLDS))


def local_share(weights: Tensor) -> Tensor:
    """(..., 100): the share of a row's mass in the 0, 1/99, ..., 1 of the sequence that is nearest to its token.

    The axes of TransNormer's Figure 2a: `local_score` asks for the neighborhood of a share, this for the share of a
    neighborhood. The mean over the rows of weights (..., N, N).
    """
    return local_share_curve(instrument_view_of_weights(weights)).reshape(*weights.shape[:-2], len(THRESHOLDS))


def local_area(score: Tensor) -> Tensor:
    """(...): the area under curves (..., 100); 1/N if each token reads itself, about 1/2 for uniform attention."""
    return torch.trapezoid(score, THRESHOLDS.to(score), dim=-1)


def local_score_curve(view: View) -> Tensor:
    """(B,H,100), the mean over rows."""
    B, H, N = view.shape
    total, count = torch.zeros(B, H, len(THRESHOLDS), dtype=torch.float64), torch.zeros(B, H, 1, dtype=torch.float64)
    for start, A in view.stochastic():
        order = _joined(view, start, start + A.shape[2]).expand(A.shape)
        mass = torch.empty_like(A).scatter_(3, order, A).cumsum(dim=3).cummax(dim=3).values  # signed mass can fall
        asked = (THRESHOLDS - SLACK).expand(*A.shape[:3], -1).contiguous()
        size = (torch.searchsorted(mass, asked) + 1).clamp(max=N)  # M41
        there = ~A[..., :1].isnan()
        total += torch.where(there, size, 0).sum(dim=2)
        count += there.sum(dim=2)
    return total / count / N


def local_share_curve(view: View) -> Tensor:
    """(B,H,100), the mean over rows."""
    B, H, N = view.shape
    size = (THRESHOLDS * N - SLACK).ceil().long()  # how many tokens a share of the sequence has: 0 to N
    total, count = torch.zeros(B, H, len(size), dtype=torch.float64), torch.zeros(B, H, 1, dtype=torch.float64)
    for start, A in view.stochastic():
        order = _joined(view, start, start + A.shape[2]).expand(A.shape)
        mass = torch.nn.functional.pad(torch.empty_like(A).scatter_(3, order, A).cumsum(dim=3), (1, 0))  # (B,H,R,N+1)
        there = ~A[..., :1].isnan()
        total += torch.where(there, mass[..., size], 0).sum(dim=2)  # M55
        count += there.sum(dim=2)
    return total / count


def _neighborhood(start: int, stop: int, N: int) -> Tensor:
    """(stop-start, N): when key s joins the neighborhood of query t: first t itself, then left, right, left, ..."""
    t, s = torch.arange(start, stop)[:, None], torch.arange(N)
    distance = (t - s).abs()
    border = torch.minimum(t, N - 1 - t)  # beyond this distance only one side is left
    return torch.where(distance <= border, 2 * distance - (s < t).long(), border + distance)


def _joined(view: View, start: int, stop: int) -> Tensor:
    """(stop-start, N): when key s joins the neighborhood of query t: along the sequence, or across the picture."""
    if view.places is None:
        return _neighborhood(start, stop, view.shape[2])
    distance = torch.cdist(view.places[start:stop], view.places)
    return distance.argsort(dim=1, stable=True).argsort(dim=1, stable=True)  # the rank of each key


@INSTRUMENT.add("local_score")
class LocalScore(Instrument):
    """The curve of TransNormer's Figure 2a with its axes exchanged, its area, and the curve on the paper's axes."""

    what = "how wide a neighborhood holds a share of the attention (dilution), as a curve and its area"
    paper = "The Devil in Linear Transformer, EMNLP 2022, arXiv 2210.10340"
    shows: ClassVar = {"area": "local area"}

    def note(self, view: View) -> str | None:
        return None if view.normalized else DIVIDED

    def measure(self, view: View) -> dict[str, Tensor]:
        score = local_score_curve(view)
        return {"area": local_area(score), "curve": score, "share": local_share_curve(view)}
