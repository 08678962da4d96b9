"""Performer (arXiv 2009.14794): softmax attention through positive random features, FAVOR+.

A_ts = sum_c e^(w_c . q_t + w_c . k_s - |k_s|^2 / 2), rows divided by their sum, with q and k times D^-1/4 and m random
rows w_c: its expectation is e^(q . k / sqrt(D)) before the division. The rows are orthogonal inside blocks of D.
Positions turn q and k before the feature map: the expectation then depends on positions by their difference alone.
"""

from typing import Any

import torch
from torch import Tensor

from linnet.attention.features import LogFeatureCore, LogFeatures
from linnet.attention.relative import Positions, RelativePositions
from linnet.config import Count, Settings
from linnet.ops.masks import Layout
from linnet.ops.precision import State, accumulator_precision, keep_precision
from linnet.registry import ATTENTION


class PerformerOptions(Settings):
    """`features`: m; `redraw`: each training forward draws new rows, everything else uses the stored ones.

    `positions` turns q and k.
    """

    features: Count = 128
    redraw: bool = False
    positions: Positions = "none"


def performer_features(m: int, D: int) -> Tensor:
    """m rows in R^D, each distributed as N(0, I) and orthogonal to the others in its block of D: (m, D)."""
    blocks = torch.linalg.qr(torch.randn(-(-m // D), D, D))  # Q R with a diagonal of R of either sign
    Q = blocks.Q * blocks.R.diagonal(dim1=1, dim2=2).sign()[:, None]  # uniform among rotations and reflections
    norms = torch.randn(m, D).norm(dim=1, keepdim=True)
    return norms * Q.mT.flatten(0, 1)[:m]  # M17


@ATTENTION.add("performer")
class PerformerAttention(LogFeatureCore):
    """Positive orthogonal random features for the exponential of the scaled dot product."""

    what = "orthogonal random features that approximate softmax"
    paper = "Rethinking Attention with Performers, ICLR 2021, arXiv 2009.14794"
    cost = "N m D"
    Options = PerformerOptions
    options: PerformerOptions
    W: Tensor

    def __init__(self, heads: int, head_dim: int, causal: bool, options: PerformerOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.register_buffer("W", performer_features(options.features, head_dim))
        self.positions = RelativePositions(options.positions, head_dim)
        self.state_types = ("sum",) * 3 + ("count",) * self.counted

    def log_features(
        self, q: Tensor, k: Tensor, where: Layout, causal: bool, past: State = (), W: Tensor | None = None
    ) -> LogFeatures:
        """(B,H,N,m) each, of the rows W, by default the stored ones.

        The query's own |q|^2 / 2 is left out, since it cancels in the quotient.
        """
        wide = accumulator_precision(q.dtype)
        W = (self.W if W is None else W).to(wide) * self.head_dim**-0.25
        q, k = self.turned(q.to(wide), k.to(wide), where)
        with keep_precision(q.device):
            half = k.square().sum(dim=-1, keepdim=True) * (self.head_dim**-0.5 / 2)  # |k|^2 / 2, scaled
            return LogFeatures(q @ W.mT, k @ W.mT - half)  # M16

    def cut_hurdle(self) -> str:
        return "redraw draws new rows on each rank" if self.options.redraw else super().cut_hurdle()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        if not (self.training and self.options.redraw):
            return super().attend(q, k, v, where, causal)
        W = performer_features(self.options.features, self.head_dim).to(self.W.device)
        return self._sum(self.log_features(q, k, where, causal, W=W), v, where, causal)[0]

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        H, m = self.heads, self.options.features
        shapes: list[tuple[int | None, ...]] = [(B, H, m, E), (B, H, m), (B, H, m)]
        return shapes + [(B,)] * self.counted

    def _apply(self, fn: Any, recurse: bool = True) -> "PerformerAttention":
        """Keep the rows in float32 in a half-precision module, because they are exponents."""
        before = self.W
        super()._apply(fn, recurse)
        if self.W.dtype in (torch.float16, torch.bfloat16):
            self.W = before.to(self.W.device)
        return self
