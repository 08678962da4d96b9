"""Bounds of gradients with respect to attention scores: those of TransNormer's Section 3, and those of a real layer.

Let p = f(s) / sum f(s) over the scores s of a row. For softmax, f = exp, |dp/ds| is at most 1/4. For linear attention,
f(s) = s, it is at most 1/(4|s|), which is not a constant: scores near 0 make it arbitrarily large. NormAttention has
no denominator but a norm, and |dL/ds| is bounded by constants of the loss and the values.

The paper's appendix also bounds whole rows. Let |dL/do_t| <= c1 and |v_s| <= c2 be Euclidean norms. Then the norm of
the row dL/ds_t is at most sqrt(n) c1 c2 / 4 for softmax and sqrt(n) c1 c2 / 4t for linear attention, with t the row's
smallest score. The largest norm over all losses with c1 = 1 is a singular value, so it is measured exactly.
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


def softmax_gradient_size(scores: Tensor) -> Tensor:
    """|dp_ts/ds_ts| (..., N, N) for p = softmax(scores): at most 1/4, and no other score has a larger effect."""
    p = scores.softmax(dim=-1)
    return p * (1 - p)  # M44


def linear_gradient_size(scores: Tensor) -> Tensor:
    """|dp_ts/ds_ts| (..., N, N) for p = scores / sum(scores): at most 1 / (4 |s_ts|)."""
    total = scores.sum(dim=-1, keepdim=True)
    return ((1 - scores / total) / total).abs()  # M44, since p/s = 1/sum


def unbounded_gradient_example(largest: float, N: int = 16, D: int = 8) -> tuple[Tensor, Tensor]:
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


def norm_gradient_size(A: Tensor, v: Tensor, eps: float, under_root: bool) -> Tensor:
    """sup |dL/dA_ts| (R,N) over losses with |dL/do| <= 1 in each entry, for o = norm(A v), A (R,N) and v (N,d).

    The norm is x / sqrt(mean x^2 + eps) if `under_root`, else x / (rms(x) + eps).
    """
    x = A @ v  # (R, d)
    scale, bend = _norm_derivative(x.square().mean(dim=1, keepdim=True), v.shape[1], eps, under_root)
    along = x @ v.mT  # (R, N)
    change = scale[:, :, None] * v - bend[:, :, None] * x[:, None] * along[:, :, None]  # (R, N, d): do/dA
    return change.abs().sum(dim=2)


def norm_gradient_bound(c1: float, c2: float, d: int, eps: float, under_root: bool) -> float:
    """The bound of |dL/ds| if |dL/do| <= c1 and |v| <= c2 in each of the d entries."""
    return 3 * c1 * c2 * d / (2 * (math.sqrt(eps) if under_root else eps))  # M45


def softmax_gradient_row(p: Tensor, v: Tensor) -> Tensor:
    """sup |dL/ds_t| (...) over losses with |dL/do_t| <= 1, for rows p (..., N) of softmax weights and v (..., N, E)."""
    o = p[..., None, :] @ v  # (..., 1, E)
    return _largest_singular(p[..., None] * (v - o))  # M53


def linear_gradient_row(s: Tensor, v: Tensor) -> Tensor:
    """The same for rows of scores s (..., N), of which those that are 0 are not seen, divided by their sum."""
    total = s.sum(dim=-1)[..., None, None]
    o = s[..., None, :] @ v / total
    return _largest_singular(torch.where(s[..., None] == 0, 0, (v - o) / total))  # M53


def _norm_row_norm(A: Tensor, v: Tensor, x: Tensor, live: Tensor, eps: float, under_root: bool) -> Tensor:
    """sup |dL/dA_t| (B,H) over losses with |dL/do_t| <= 1, for one row A (B,H,1,N) and values v (B,H,N,E).

    o is the norm of x (B,1,H*E), the merged heads of A v. `live` (B,H,N) or (N,) marks the keys that have a score.
    """
    d = x.shape[2]
    scale, bend = (y[:, :, None, None] for y in _norm_derivative(x.square().mean(dim=2), d, eps, under_root))
    own = A @ v  # (B, H, 1, E)
    along = own.square().sum(dim=3, keepdim=True)
    # do/dx_h = scale I - bend x x_h^T: each direction but that of x_h keeps its length, times `scale`.
    toward = scale.square() - 2 * scale * bend * along + bend.square() * along * x.square().sum(dim=2)[:, :, None, None]
    unit = own / along.sqrt().clamp(min=1e-300)
    turned = scale * v + (toward.clamp(min=0).sqrt() - scale) * (v @ unit.mT) * unit  # (B, H, N, E)
    return _largest_singular(torch.where(live[..., None], turned, 0))


def gradient_row_bound(c2: Tensor, n: int, t: Tensor | float = 1.0) -> Tensor:
    """The paper's bound of |dL/ds_t| with c1 = 1: softmax, or linear attention whose smallest score is t."""
    return math.sqrt(n) * c2 / (4 * t)  # M54


def _largest_singular(change: Tensor) -> Tensor:
    """(...): the largest singular value of (..., N, E), from the E x E products."""
    return torch.linalg.eigvalsh(change.mT @ change)[..., -1].clamp(min=0).sqrt()


def _norm_derivative(square: Tensor, d: int, eps: float, under_root: bool) -> tuple[Tensor, Tensor]:
    """a and b of do/dx = a I - b x x^T for a norm of d entries with mean square `square`."""
    if under_root:
        scale = (square + eps).rsqrt()
        return scale, scale**3 / d
    root = square.sqrt()
    scale = 1 / (root + eps)
    return scale, torch.where(root > 0, scale.square() / (d * root.clamp(min=1e-300)), 0)


@INSTRUMENT.add("gradient_bound")
class GradientBound(Instrument):
    """The largest |dp/ds| of a layer and its bound, by entry and by row; with a norm, |dL/ds| for |dL/do| <= 1."""

    what = "the largest gradient with respect to a score and to a row of scores, and their bounds"
    paper = "The Devil in Linear Transformer, EMNLP 2022, arXiv 2210.10340"
    shows: ClassVar = {
        "largest": "largest gradient",
        "bound": "its bound",
        "ratio": "bound / gradient",
        "row": "largest row norm",
        "row_bound": "bound of the row",
        "row_ratio": "bound / row norm",
    }

    def refusal(self, view: View) -> str | None:
        of_scores = isinstance(view.core, SoftmaxAttention | DiagAttention | BigBirdAttention)
        if of_scores or _behind_norm(view) or (view.kernel is not None and view.kernel.divided):
            return None
        return "its weights are not f(s) / sum f(s) of scores s, so the paper's bounds do not apply"

    def note(self, view: View) -> str | None:
        rows = f"rows: |dL/do| <= 1 as a vector, at most {SAMPLED} of them"
        if _behind_norm(view):
            limit = f"3 c2 d / (2 {'sqrt(eps)' if _norm_of(view)[1] else 'eps'})"
            return f"for a loss with |dL/do| <= 1, through the norm; bound {limit}; {rows}, bound sqrt(n) times that"
        entry = "bound 1/4" if view.kernel is None else "bound 1/(4|s|), at the score with the largest gradient"
        return f"{entry}; {rows}, bound sqrt(n) c2 / {'4' if view.kernel is None else '4t, t the smallest score'}"

    def measure(self, view: View) -> dict[str, Tensor]:
        found = _measure_norm(view) if _behind_norm(view) else {**_measure_entries(view), **_measure_rows(view)}
        return {
            **found,
            "ratio": found["bound"] / found["largest"],
            "row_ratio": found["row_bound"] / found["row"],
        }


def _behind_norm(view: View) -> bool:
    """Whether the layer has no denominator and applies a norm without a gain to the weighted sum."""
    core = view.core
    if isinstance(core, NormAttention):
        return core.options.xnorm in ("srms", "eq34")
    return isinstance(core, DiagAttention) and core.options.kind == "rela"


def _norm_of(view: View) -> tuple[float, bool]:
    """The epsilon of the layer's norm, and whether it is under the root."""
    core = view.core
    return (core.xnorm.eps, core.options.xnorm == "eq34") if isinstance(core, NormAttention) else (EPS, False)


def _sampled(view: View) -> list[int]:
    """The rows whose whole gradient is computed, including the first and the last."""
    N = view.shape[2]
    return torch.linspace(0, N - 1, min(N, SAMPLED)).long().tolist()


def _measure_rows(view: View) -> dict[str, Tensor]:
    """The largest norm of a row's gradient among a few rows, and the bound of that row."""
    assert view.v is not None  # a mechanism has values
    v, N = view.v.cpu().double(), view.shape[2]
    c2 = v.norm(dim=3).amax(dim=2)  # (B, H)
    largest, bound = torch.zeros_like(c2), gradient_row_bound(c2, N)
    for t in _sampled(view):
        if view.kernel is None:
            norm, limit = softmax_gradient_row(view.part(t, t + 1).squeeze(2), v), bound
        else:
            keys = t + 1 if view.causal else N
            s = (view.kernel.phi_k[:, :, :keys] @ view.kernel.phi_q[:, :, t, :, None]).squeeze(3)  # (B, H, keys)
            norm, limit = linear_gradient_row(s, v[:, :, :keys]), gradient_row_bound(c2, N, s.amin(dim=2))
        bound = torch.where(norm > largest, limit, bound)
        largest = torch.maximum(norm, largest)
    return {"row": largest, "row_bound": bound}


def _measure_entries(view: View) -> dict[str, Tensor]:
    """The largest |dp/ds| of a layer without a norm, and its bound."""
    if view.kernel is not None:
        return _measure_kernel(view)
    largest = torch.stack([(A * (1 - A)).amax(dim=(2, 3)) for _, A in view.rows()]).amax(dim=0)
    return {"largest": largest, "bound": torch.full_like(largest, 0.25)}


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
    """The largest gradients of a few rows through the norm over the merged heads, by entry and by row; their bounds."""
    assert view.v is not None  # a mechanism with a norm has values
    B, H, N = view.shape
    d = H * view.v.shape[3]
    eps, under_root = _norm_of(view)
    largest, row = torch.zeros(2, B, H, dtype=torch.float64).unbind()
    v = view.v.cpu().double()
    for t in _sampled(view):
        A = view.part(t, t + 1)  # (B, H, 1, N)
        o = A @ v
        x = o.transpose(1, 2).flatten(2)  # (B, 1, d)
        scale, bend = (y[:, :, None, None] for y in _norm_derivative(x.square().mean(dim=2), d, eps, under_root))
        # A weight of head h changes its own entries directly, and all d entries through the rms.
        bend = bend * (o @ v.mT)  # (B, H, 1, N)
        own = (v * scale - bend.mT * o).abs().sum(dim=3)  # (B, H, N)
        others = bend.squeeze(2).abs() * (x.abs().sum(dim=2)[:, :, None] - o.abs().sum(dim=3))
        # A future key or one of another block has no score, and a score that ReLU sets to 0 has no gradient.
        live = (A != 0).squeeze(2) if isinstance(view.core, DiagAttention) else torch.arange(N) < view.seen[t]
        largest = torch.maximum(largest, torch.where(live, own + others, 0).amax(dim=2))
        row = torch.maximum(row, _norm_row_norm(A, v, x, live, eps, under_root))
    bounds = [norm_gradient_bound(1, float(sample.abs().max()), d, eps, under_root) for sample in v]
    by_row = [
        math.sqrt(N) * norm_gradient_bound(1, float(sample.norm(dim=2).max()), d, eps, under_root) for sample in v
    ]  # M54
    bound, row_limit = (torch.tensor(x, dtype=torch.float64)[:, None].expand(B, H) for x in (bounds, by_row))
    return {"largest": largest, "bound": bound, "row": row, "row_bound": row_limit}
