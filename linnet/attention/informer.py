"""Informer (arXiv 2012.07436): ProbSparse attention, exact softmax for the few queries whose scores are most uneven.

A sample of keys estimates how uneven the scores of a query are: their maximum minus their mean. The most uneven queries
attend to all keys; every other query gives the mean of the values.
"""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from linnet.attention.base import Core
from linnet.config import Settings
from linnet.ops.backend import cpu_backend_serves
from linnet.ops.block import block_turns, pick_block_tokens
from linnet.ops.hashing import hash_below, hash_coordinates, new_hashing_seed
from linnet.ops.masks import Layout, clear_masked, visible_mask
from linnet.ops.pieces import shared_piece_attention
from linnet.ops.precision import FLOOR, accumulator_precision, keep_precision
from linnet.registry import ATTENTION

ROWS = 128  # queries whose sampled keys are scored at once
FEW = 64  # if there are at most this many keys per sample, scoring all keys is faster than gathering


class InformerOptions(Settings):
    """`factor`: c, so that c ceil(ln N) keys are sampled, and as many queries attend."""

    factor: Annotated[int, Field(ge=1, le=2**20)] = 16


@ATTENTION.add("informer")
class InformerAttention(Core):
    """Softmax for the most uneven queries, the mean of the values for the others."""

    what = "softmax for the queries with the most uneven scores, the mean of the values for the rest"
    paper = "Informer, AAAI 2021, arXiv 2012.07436"
    cost = "N D log N"
    causal_form = False
    packed = False
    chooses = True
    seed: Tensor
    Options = InformerOptions
    options: InformerOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: InformerOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.register_buffer("seed", new_hashing_seed())

    def _budget(self, length: Tensor) -> Tensor:
        """u = c ceil(ln n) for a row of n tokens, at most n."""
        return torch.minimum(self.options.factor * length.clamp(min=2).double().log().ceil().long(), length)

    def _largest_budget(self, N: int) -> int:
        """u of a full row of N tokens."""
        return min(N, self.options.factor * math.ceil(math.log(max(N, 2))))

    @torch.no_grad()
    def _unevenness(self, q: Tensor, k: Tensor, real: Tensor, length: Tensor) -> Tensor:
        """M (B,H,N) of rows that begin with their first real token; FLOOR for masked queries, or without samples."""
        N, scale = q.shape[2], self.head_dim**-0.5
        q, k = (x.detach().to(accumulator_precision(x.dtype)) for x in (q, k))
        if cpu_backend_serves(q, k):
            from linnet.ops.cpu.sample import sample_unevenness

            M: Tensor = sample_unevenness(q, k, real, self.seed, length, self._budget(length), scale)
            return M
        number = torch.arange(self._largest_budget(N), device=q.device)
        u, n = self._budget(length)[:, None, None], length[:, None, None]
        parts = []
        for first in range(0, N, ROWS):
            token = torch.arange(first, min(first + ROWS, N), device=q.device)
            index = hash_below(
                hash_coordinates(self.seed, token[:, None], number), n
            )  # (B, T, U): the keys that each query samples
            held = (real.gather(1, index.flatten(1)).view_as(index) & (number < u))[:, None]
            scores = self._sampled(q[:, :, token], k, index) * scale
            mean = scores.masked_fill(~held, 0).sum(dim=-1) / held.sum(dim=-1).clamp(min=1)
            top = scores.masked_fill(~held, FLOOR).amax(dim=-1)
            parts.append(torch.where(held.any(dim=-1), top - mean, FLOOR))  # M34
        return torch.cat(parts, dim=2).masked_fill(~real[:, None], FLOOR)

    @staticmethod
    def _sampled(q: Tensor, k: Tensor, index: Tensor) -> Tensor:
        """(B,H,T,U): the scores of queries (B,H,T,D) with the keys that `index` (B,T,U) names."""
        if k.shape[2] <= FEW * index.shape[2]:  # computing all scores is faster than gathering the keys
            return (q @ k.mT).gather(3, index[:, None].expand(-1, q.shape[1], -1, -1))
        keys = pick_block_tokens(k, index.flatten(1)).unflatten(2, index.shape[1:])  # (B, H, T, U, D)
        return (keys @ q[..., None]).squeeze(-1)

    def _chosen(self, q: Tensor, k: Tensor, real: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """The queries that attend, the most uneven first (B,H,U), and which of them are within the row's budget."""
        with keep_precision(q.device):
            M = self._unevenness(q, k, real, length)
        best = M.topk(self._largest_budget(q.shape[2]), dim=-1).indices
        counts = torch.arange(best.shape[2], device=q.device) < self._budget(length)[:, None, None]
        return best, counts & real[:, None].expand(-1, self.heads, -1).gather(2, best)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        B = len(q)
        length = where.lengths(B)
        if where.real is None:
            return self._rows(q, k, v, where.reals(B), length)
        k, v = clear_masked(where.real, k, v)
        there, back = block_turns(where.real)
        q, k, v = (pick_block_tokens(x, there) for x in (q, k, v))
        return pick_block_tokens(self._rows(q, k, v, where.real.gather(1, there), length), back)

    def _rows(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, length: Tensor) -> Tensor:
        """`attend` for rows that begin with their first real token."""
        best, counts = self._chosen(q, k, real, length)
        index = best[..., None]  # (B, H, U, 1)
        chosen = q.gather(2, index.expand(-1, -1, -1, q.shape[3]))
        sharp = shared_piece_attention(chosen, k, v, real, self.head_dim**-0.5)  # (B, H, U, E)
        n = real.sum(dim=1).clamp(min=1)[:, None, None, None]
        mean = (v.to(accumulator_precision(v.dtype)).sum(dim=2, keepdim=True) / n).to(v.dtype)  # (B, H, 1, E)
        sharp = torch.where(counts[..., None], sharp, mean)
        return mean.expand_as(v).scatter(2, index.expand_as(sharp), sharp)

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        B, H, N, D = q.shape
        see = visible_mask(where, False).expand(B, 1, 1, N)
        real = see.reshape(B, N)
        there, back = block_turns(real)
        length = where.lengths(B)
        best, counts = self._chosen(
            pick_block_tokens(q, there), pick_block_tokens(k, there), real.gather(1, there), length
        )
        sharp = torch.zeros(B, H, N, dtype=torch.bool, device=q.device).scatter(2, best, counts)
        sharp = pick_block_tokens(sharp[..., None], back)  # (B, H, N, 1): the queries that attend
        mean = see.to(q.dtype) / see.sum(dim=-1, keepdim=True).clamp(min=1)
        scores = (q @ k.mT * D**-0.5).masked_fill(~see, FLOOR)
        return torch.where(sharp, scores.softmax(dim=-1), mean)  # M35
