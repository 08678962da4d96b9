"""Nystromformer (arXiv 2102.03902): the softmax matrix rebuilt from its rows and columns at m landmarks.

A = softmax(Q Lk^T / sqrt(D)) Z softmax(Lq K^T / sqrt(D)) with Z ~ softmax(Lq Lk^T / sqrt(D))^+, where the landmarks Lq
and Lk are the means of m segments of the real tokens. A row of at most m tokens has one landmark per token; then
S S^+ S = S, and the softmax itself is computed.
"""

import torch
from torch import Tensor

from linnet.attention.base import Core
from linnet.config import Count, Settings
from linnet.ops import reference
from linnet.ops.masks import Layout, clear_masked, visible_mask
from linnet.ops.pieces import shared_piece_attention
from linnet.ops.precision import FLOOR, accumulator_precision, keep_precision
from linnet.ops.pseudo_inverse import pseudo_inverse
from linnet.registry import ATTENTION


class NystromformerOptions(Settings):
    """`landmarks`: m; `steps`: iterations of the pseudo-inverse."""

    landmarks: Count = 128
    steps: Count = 6


def nystrom_segments(real: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The segment 0 ... m - 1 of each token (B,N), and the number of real tokens in each segment (B,m).

    The real tokens are divided as evenly as m allows; if there are fewer than m, each has its own segment.
    """
    rank = (real.cumsum(dim=1) - 1).clamp(min=0)
    own = rank * m // real.sum(dim=1, keepdim=True).clamp(min=m)
    sizes = torch.zeros(real.shape[0], m, dtype=torch.int64, device=real.device)
    return own, sizes.scatter_add(1, own, real.to(torch.int64))


def nystrom_landmarks(x: Tensor, own: Tensor, sizes: Tensor) -> Tensor:
    """Means (B,H,m,D) of the segments of x (B,H,N,D), which is 0 where masked."""
    index = own[:, None, :, None].expand(x.shape)
    total = x.new_zeros(*x.shape[:2], sizes.shape[1], x.shape[3]).scatter_add(2, index, x)
    return total / sizes.clamp(min=1)[:, None, :, None]  # M20


@ATTENTION.add("nystromformer")
class NystromformerAttention(Core):
    """Softmax attention through landmarks and an iterative pseudo-inverse."""

    what = "softmax rebuilt from m landmarks by the Nystrom method"
    paper = "Nystromformer: A Nystrom-Based Algorithm for Self-Attention, AAAI 2021, arXiv 2102.03902"
    cost = "N m D"
    causal_form = False
    recurrent = False
    packed = False
    Options = NystromformerOptions
    options: NystromformerOptions

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        (B, _, N, _), m, wide = q.shape, self.options.landmarks, accumulator_precision(q.dtype)
        real = where.real
        q, k, v = q.to(wide), k.to(wide), v.to(wide)
        known, k, v = clear_masked(real, q, k, v)
        scale = self.head_dim**-0.5
        with keep_precision(q.device):
            if m >= N:
                return shared_piece_attention(q, k, v, real, scale)
            if real is None and N % m == 0:
                Lq, Lk = (x.unflatten(2, (m, -1)).mean(dim=3) for x in (q, k))  # M20
                sizes = None
            else:
                own, sizes = nystrom_segments(where.reals(B), m)
                Lq, Lk = (nystrom_landmarks(x, own, sizes) for x in (known, k))  # (B, H, m, D)
            Z = pseudo_inverse((Lq @ Lk.mT * scale).softmax(dim=-1), self.options.steps)
            values = Z @ shared_piece_attention(Lq, k, v, real, scale)  # (B, H, m, E)
            if real is None or sizes is None:
                return shared_piece_attention(q, Lk, values, None, scale)
            short = real.sum(dim=1) <= m  # (B,): each token is a landmark, and its own value is exact
            values = torch.where(short[:, None, None, None], nystrom_landmarks(v, own, sizes), values)
            return shared_piece_attention(q, Lk, values, sizes > 0, scale)

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        (B, _, N, D), m, wide = q.shape, self.options.landmarks, accumulator_precision(q.dtype)
        q, k = q.to(wide), k.to(wide)
        exact = reference.reference_block_weights(q, k, where, N, "softmax", False)  # M5, one block
        if m >= N:
            return exact
        real = where.reals(B)
        known, k = clear_masked(real, q, k)
        own, sizes = nystrom_segments(real, m)
        P = (own[:, None] == torch.arange(m, device=q.device)[:, None]) & real[:, None]  # (B, m, N)
        P = (P.to(wide) / sizes.clamp(min=1)[..., None])[:, None]
        Lq, Lk = P @ known, P @ k  # M20
        last = (Lq @ k.mT * D**-0.5).masked_fill(~visible_mask(where, False), FLOOR).softmax(dim=-1)
        first, middle = ((x @ Lk.mT * D**-0.5).softmax(dim=-1) for x in (q, Lq))
        A = first @ pseudo_inverse(middle, self.options.steps) @ last  # M21
        return torch.where(real.sum(dim=1)[:, None, None, None] <= m, exact, A)
