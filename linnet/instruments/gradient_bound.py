"""Bounds of gradients with respect to attention scores: those of TransNormer's Section 3, and those of a real layer.

Let p = f(s) / sum f(s) over the scores s of a row. For softmax, f = exp, |dp/ds| is at most 1/4. For linear attention,
f(s) = s, it is at most 1/(4|s|), which is not a constant: scores near 0 make it arbitrarily large. NormAttention has
no denominator but a norm, and |dL/ds| is bounded by constants of the loss and the values.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from linnet.attention.bigbird import BigBirdAttention
from linnet.attention.diag import DiagAttention
from linnet.attention.norm import NormAttention
from linnet.attention.softmax import SoftmaxAttention
from linnet.errors import InputError
from linnet.instruments.base import Instrument, View
from linnet.registry import INSTRUMENT

SAMPLED = 64  # rows whose gradient through a norm is computed: each costs N times the width
EPS = 1e-8  # added to the rms in linnet's norms


def softmax_gradient(scores: Tensor) -> Tensor:
    """|dp_ts/ds_ts| (..., N, N) for p = softmax(scores): at most 1/4, and no other score has a larger effect."""
    p = scores.softmax(dim=-1)
    return p * (1 - p)  # M44


def linear_gradient(scores: Tensor) -> Tensor:
    """|dp_ts/ds_ts| (..., N, N) for p = scores / sum(scores): at most 1 / (4 |s_ts|)."""
    total = scores.sum(dim=-1, keepdim=True)
    return ((1 - scores / total) / total).abs()  # M44, since p/s = 1/sum


def unbounded(largest: float, N: int = 16, D: int = 8) -> tuple[Tensor, Tensor]:
    """q, k (N,D) for which |dp/ds| of 1+elu attention exceeds `largest`, however large that is.

    The construction of Proposition 3.1: if all scores equal s, then |dp/ds| = (N-1) / (N^2 s). Since 1+elu(x) = e^x
    below 0, queries and keys of -x have s = D e^(-2x).
    """
    if not (0 < largest < 1e250 and N >= 2 and D >= 1):
        allowed = "largest must be above 0 and below 1e250, N at least 2, D at least 1"
        raise InputError(f"largest is {largest}, N {N}, D {D}: {allowed}")
    s = (N - 1) / (N * N * largest) / 2  # half of the score that gives exactly `largest`
    x = max(math.log(D / s) / 2, 0.0)
    both = torch.full((N, D), -x, dtype=torch.float64)
    return both, both.clone()


def norm_gradient(A: Tensor, v: Tensor, eps: float, under_root: bool) -> Tensor:
    """sup |dL/dA_ts| (R,N) over losses with |dL/do| <= 1 in each entry, for o = norm(A v), A (R,N) and v (N,d).

    The norm is x / sqrt(mean x^2 + eps) if `under_root`, else x / (rms(x) + eps).
    """
    x = A @ v  # (R, d)
    d, square = v.shape[1], x.square().mean(dim=1, keepdim=True)
    if under_root:
        scale = (square + eps).rsqrt()
        bend = scale**3 / d
    else:
        root = square.sqrt()
        scale = 1 / (root + eps)
        bend = torch.where(root > 0, scale.square() / (d * root.clamp(min=1e-300)), 0)
    along = x @ v.mT  # (R, N)
    change = scale[:, :, None] * v - bend[:, :, None] * x[:, None] * along[:, :, None]  # (R, N, d): do/dA
    return change.abs().sum(dim=2)


def norm_bound(c1: float, c2: float, d: int, eps: float, under_root: bool) -> float:
    """The bound of |dL/ds| if |dL/do| <= c1 and |v| <= c2 in each of the d entries."""
    return 3 * c1 * c2 * d / (2 * (math.sqrt(eps) if under_root else eps))  # M45


@INSTRUMENT.add("gradient_bound")
class GradientBound(Instrument):
    """The largest |dp/ds| of a layer and its bound; for a layer with a norm, |dL/ds| with |dL/do| <= 1."""

    what = "the largest gradient with respect to a score, and its bound"
    paper = "The Devil in Linear Transformer, EMNLP 2022, arXiv 2210.10340"
    shows: ClassVar = {"largest": "largest gradient", "bound": "its bound"}

    def refusal(self, view: View) -> str | None:
        of_scores = isinstance(view.core, SoftmaxAttention | DiagAttention | BigBirdAttention)
        if of_scores or _behind_norm(view) or (view.kernel is not None and view.kernel.divided):
            return None
        return "its weights are not f(s) / sum f(s) of scores s, so the paper's bounds do not apply"

    def note(self, view: View) -> str | None:
        if _behind_norm(view):
            return f"for a loss with |dL/do| <= 1, through the norm; bound 3 c2 d / (2 eps), at most {SAMPLED} rows"
        return "bound 1/4" if view.kernel is None else "bound 1/(4|s|), at the score with the largest gradient"

    def measure(self, view: View) -> dict[str, Tensor]:
        if _behind_norm(view):
            return _measure_norm(view)
        if view.kernel is None:
            largest = torch.stack([(A * (1 - A)).amax(dim=(2, 3)) for _, A in view.rows()]).amax(dim=0)
            return {"largest": largest, "bound": torch.full_like(largest, 0.25)}
        return _measure_kernel(view)


def _behind_norm(view: View) -> bool:
    """Whether the layer has no denominator and applies SRMS to the weighted sum."""
    core = view.core
    if isinstance(core, NormAttention):
        return core.options.xnorm == "srms"
    return isinstance(core, DiagAttention) and core.options.kind == "rela"


def _measure_kernel(view: View) -> dict[str, Tensor]:
    """The largest gradient of weights made from normalized features, and the bound 1/(4|s|) at that score."""
    kernel = view.kernel
    assert kernel is not None  # `refusal` and `measure` have checked
    sums = kernel.phi_k.cumsum(dim=2) if view.causal else kernel.phi_k.sum(dim=2, keepdim=True)
    total = (kernel.phi_q * sums).sum(dim=3)  # (B, H, N)
    largest = torch.zeros(view.shape[:2], dtype=torch.float64)
    bound = torch.zeros_like(largest)
    for start, p in view.rows():
        z = total[:, :, start : start + p.shape[2], None]
        gradient = torch.where(p > 0, (1 - p) / z, 0).flatten(2)
        found, place = gradient.max(dim=2)
        limit = (1 / (4 * p * z)).flatten(2).gather(2, place[..., None]).squeeze(2)
        bound = torch.where(found > largest, limit, bound)
        largest = torch.maximum(found, largest)
    return {"largest": largest, "bound": bound}


def _measure_norm(view: View) -> dict[str, Tensor]:
    """The largest gradient of a few rows through the norm over the merged heads, and its bound."""
    assert view.v is not None  # a mechanism with a norm has values
    B, H, N = view.shape
    d = H * view.v.shape[3]
    largest = torch.zeros(B, H, dtype=torch.float64)
    v = view.v.cpu().double()
    for t in torch.linspace(0, N - 1, min(N, SAMPLED)).long().tolist():
        A = view.part(t, t + 1)  # (B, H, 1, N)
        x = (A @ v).transpose(1, 2).flatten(2)  # (B, 1, d)
        root = x.square().mean(dim=2).sqrt()[:, :, None, None]  # (B, 1, 1, 1)
        along = (A @ v) @ v.mT  # (B, H, 1, N)
        # A weight of head h changes its own entries directly, and all d entries through the rms.
        bend = along / (d * root.clamp(min=1e-300) * (root + EPS) ** 2)
        own = (v / (root + EPS) - bend.mT * (A @ v)).abs().sum(dim=3)  # (B, H, N)
        others = bend.squeeze(2).abs() * (x.abs().sum(dim=2)[:, :, None] - (A @ v).abs().sum(dim=3))
        # A future key or one of another block has no score, and a score that ReLU sets to 0 has no gradient.
        live = (A != 0).squeeze(2) if isinstance(view.core, DiagAttention) else torch.arange(N) < view.seen[t]
        largest = torch.maximum(largest, torch.where(live, own + others, 0).amax(dim=2))
    bounds = [norm_bound(1, float(sample.abs().max()), d, EPS, under_root=False) for sample in v]
    return {"largest": largest, "bound": torch.tensor(bounds, dtype=torch.float64)[:, None].expand(B, H)}
