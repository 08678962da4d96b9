"""Performer (arXiv 2009.14794): softmax attention through positive random features, FAVOR+.

A_ts = sum_c e^(w_c . q_t + w_c . k_s - |k_s|^2 / 2), rows divided by their sum, with q and k times D^-1/4 and m random
rows w_c: its expectation is e^(q . k / sqrt(D)) before the division. The rows are orthogonal inside blocks of D.
"""

from typing import Any

import torch
from torch import Tensor

from linnet.attention.base import Core
from linnet.attention.rows import Kernel, exponentials
from linnet.config import Count, Settings
from linnet.ops import exp_attention, reference
from linnet.ops.masks import layout
from linnet.ops.precision import State, accumulator, no_autocast
from linnet.registry import ATTENTION


class PerformerOptions(Settings):
    """`features`: m; `redraw`: a training forward draws rows of its own, all else uses the stored ones."""

    features: Count = 128
    redraw: bool = False


def orthogonal_features(m: int, D: int) -> Tensor:
    """m rows in R^D, each distributed as N(0, I), orthogonal to the others of its block of D: (m, D)."""
    blocks = torch.linalg.qr(torch.randn(-(-m // D), D, D))  # Q R with a diagonal of R of either sign
    Q = blocks.Q * blocks.R.diagonal(dim1=1, dim2=2).sign()[:, None]  # uniform among rotations and reflections
    norms = torch.randn(m, D).norm(dim=1, keepdim=True)
    return norms * Q.mT.flatten(0, 1)[:m]  # M17


@ATTENTION.add("performer")
class PerformerAttention(Core):
    """Positive orthogonal random features for the exponential of the scaled dot product."""

    what = "orthogonal random features that approximate softmax"
    paper = "Rethinking Attention with Performers, ICLR 2021, arXiv 2009.14794"
    cost = "N m D"
    state_types = ("sum", "sum", "sum")
    Options = PerformerOptions
    options: PerformerOptions
    W: Tensor

    def __init__(self, heads: int, head_dim: int, causal: bool, options: PerformerOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.register_buffer("W", orthogonal_features(options.features, head_dim))

    def _log_features(self, q: Tensor, k: Tensor, redraw: bool = False) -> tuple[Tensor, Tensor]:
        """(B,H,N,m) each; the query's own |q|^2 / 2 is left out, since it cancels in the quotient."""
        wide = accumulator(q.dtype)
        W = orthogonal_features(self.options.features, self.head_dim).to(self.W.device) if redraw else self.W
        W = W.to(wide) * self.head_dim**-0.25
        q, k = q.to(wide), k.to(wide)
        with no_autocast(q.device):
            half = k.square().sum(dim=-1, keepdim=True) * (self.head_dim**-0.5 / 2)  # |k|^2 / 2, scaled
            return q @ W.mT, k @ W.mT - half  # M16

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, key_mask: Tensor | None, segments: Tensor | None
    ) -> Tensor:
        log_q, log_k = self._log_features(q, k, redraw=self.training and self.options.redraw)
        return exp_attention(log_q, log_k, v.to(log_q.dtype), causal, key_mask, segments)

    def dense(self, q: Tensor, k: Tensor, causal: bool, key_mask: Tensor | None, segments: Tensor | None) -> Tensor:
        where = layout(q.shape[0], q.shape[2], key_mask, segments, q.device)
        return reference.exp_weights(*self._log_features(q, k), where, causal)  # M11

    def kernel(self, q: Tensor, k: Tensor) -> Kernel:
        log_q, log_k = self._log_features(q.double(), k.double())
        return exponentials(log_q, log_k)

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: State | None
    ) -> tuple[Tensor, State]:
        """The state: S, z, m of `exp_attention`, of the stored rows: it outlives a call."""
        log_q, log_k = self._log_features(q, k)
        return exp_attention(log_q, log_k, v.to(log_q.dtype), key_mask=key_mask, state=state, return_state=True)

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        H, m = self.heads, self.options.features
        return [(B, H, m, E), (B, H, m), (B, H, m)]

    def _apply(self, fn: Any, recurse: bool = True) -> "PerformerAttention":
        """The rows stay float32 in a module that is turned to half: they stand in exponents."""
        before = self.W
        super()._apply(fn, recurse)
        if self.W.dtype in (torch.float16, torch.bfloat16):
            self.W = before.to(self.W.device)
        return self
