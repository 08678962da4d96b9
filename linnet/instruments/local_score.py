"""Locally accumulated attention score: how large a neighborhood of a token holds a share of its attention.

The procedure of TransNormer's appendix: start at the token itself, add its left neighbor, its right one, the next left
one and so on, within the sequence; record the size at which the mass first reaches each of 100 thresholds. In a
image the neighborhood grows by the distance between patches, and the order of equally distant ones is fixed.

The appendix's listing differs from its text. Its two bounds name the next keys, not the last ones: so the left side
stops before key 0, whose mass is never counted, and the size between the bounds is two too large. `printed=True`
follows the listing, for comparison with curves computed by it.
"""

from typing import ClassVar

import torch
from torch import Tensor

from linnet.instruments.base import DIVIDED, Instrument, View, instrument_view_of_weights
from linnet.registry import INSTRUMENT

THRESHOLDS = torch.linspace(0, 1, 100, dtype=torch.float64)
SLACK = 1e-6  # mass that rounding may lose


def local_score(weights: Tensor, printed: bool = False) -> Tensor:
    """(..., 100): the share of the sequence that holds 0, 1/99, ..., 1 of a row's mass around its token.

    The mean over the rows of weights (..., N, N). A low curve means local attention, the diagonal diluted attention.
    `printed` follows the listing of TransNormer's appendix, which skips key 0 and counts two keys too many.
    """
    curve = printed_local_score_curve if printed else local_score_curve
    return curve(instrument_view_of_weights(weights)).reshape(*weights.shape[:-2], len(THRESHOLDS))


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


def printed_local_score_curve(view: View) -> Tensor:
    """(B,H,100), the mean over rows, by the listing of the appendix."""
    B, H, N = view.shape
    total, count = torch.zeros(B, H, len(THRESHOLDS), dtype=torch.float64), torch.zeros(B, H, 1, dtype=torch.float64)
    for start, A in view.stochastic():
        left, right = _printed_bounds(start, start + A.shape[2], N)  # (R,2N)
        before = torch.nn.functional.pad(A.cumsum(dim=3), (1, 0))  # (B,H,R,N+1): the mass before each key
        upper, lower = (side.expand(*A.shape[:2], -1, -1) for side in (right, left + 1))
        mass = (before.gather(3, upper) - before.gather(3, lower)).cummax(dim=3).values
        asked = (THRESHOLDS - SLACK).expand(*A.shape[:3], -1).contiguous()
        turn = torch.searchsorted(mass, asked).clamp(max=left.shape[1] - 1)  # one never reached ends with N keys
        size = (right - left + 1).clamp(max=N).expand(*A.shape[:2], -1, -1).gather(3, turn)
        size = torch.where(turn == 0, 1, size)  # before the first turn the listing counts the token itself
        size[..., 0] = 0  # M61
        there = ~A[..., :1].isnan()
        total += torch.where(there, size, 0).sum(dim=2)
        count += there.sum(dim=2)
    return total / count / N


def _printed_bounds(start: int, stop: int, N: int) -> tuple[Tensor, Tensor]:
    """(stop-start, 2N) each: the next key left and right of query t after each number of turns, left first."""
    t, turns = torch.arange(start, stop)[:, None], torch.arange(2 * N)
    left = torch.maximum(t - 1 - (turns + 1) // 2, torch.clamp(t - 1, max=0))  # stops at key 0, which is never taken
    return left, torch.clamp(t + 1 + turns // 2, max=N)


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
    """(stop-start, N): when key s joins the neighborhood of query t: along the sequence, or across the image."""
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
