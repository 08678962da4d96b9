"""Reformer (arXiv 2001.04451): a locality-sensitive hash sorts the tokens, which attend inside chunks of that order.

Queries and keys share one projection, with keys scaled to length 1. A few rounds of hashing, each with its own random
rotations, find neighbors that one round would miss. A token attends to itself only if it sees nothing else.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from linnet.attention.base import Core, Mixer
from linnet.config import Settings
from linnet.ops.lsh import SELF, lsh_attention
from linnet.ops.masks import Layout, clear_masked
from linnet.ops.precision import accumulator_precision, keep_precision
from linnet.registry import ATTENTION


class ReformerOptions(Settings):
    """`rounds` of hashing; `chunk` is c; a row has one bucket per chunk, at most `max_buckets`.

    `scale`: scores are q.k/|k| as in Hugging Face's layer, or divided by sqrt(D) as in the paper.
    """

    rounds: Annotated[int, Field(ge=1, le=64)] = 2
    chunk: Annotated[int, Field(ge=1, le=2**20)] = 64
    max_buckets: Annotated[int, Field(ge=2, le=2**16, multiple_of=2)] = 256
    scale: Literal["none", "head_dim"] = "none"


def reformer_keys(k: Tensor) -> Tensor:
    """k / |k|."""
    return F.normalize(k, dim=-1, eps=1e-6)


class SharedMixer(Mixer):
    """Projections with one part for queries and keys."""

    parts = 2

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, v = self._project(x).unflatten(2, (2, self.core.heads, self.core.head_dim)).permute(2, 0, 3, 1, 4)
        return q, q, v


@ATTENTION.add("reformer")
class ReformerAttention(Core):
    """Softmax inside chunks of tokens sorted by a hash."""

    what = "softmax inside chunks of tokens that are sorted by a hash"
    paper = "Reformer: The Efficient Transformer, ICLR 2020, arXiv 2001.04451"
    cost = "N c D + N log N"
    causal_form = False
    packed = False
    chooses = True
    rotations: Tensor
    Options = ReformerOptions
    options: ReformerOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: ReformerOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        # Multiples of 1/32, which half precision holds exactly, so that a model hashes the same in every type.
        drawn = (32 * torch.randn(options.rounds, head_dim, options.max_buckets // 2)).round() / 32
        self.register_buffer("rotations", drawn)

    @classmethod
    def mixer(cls, width: int, heads: int, causal: bool, options: Settings) -> Mixer:
        assert isinstance(options, ReformerOptions)
        return SharedMixer(cls(heads, width // heads, causal, options))

    @property
    def _scale(self) -> float:
        """The factor of the scores."""
        return self.head_dim**-0.5 if self.options.scale == "head_dim" else 1.0

    @torch.no_grad()
    def _order(self, q: Tensor, real: Tensor | None) -> Tensor:
        """(B,H,R,N): the tokens of each round sorted by bucket, then by place, masked ones last."""
        N, wide = q.shape[2], accumulator_precision(q.dtype)
        place, most = torch.arange(N, device=q.device), self.rotations.shape[2]
        half = min(-(-N // (2 * self.options.chunk)), most)  # half the buckets of a full row
        p = q.to(wide)[:, :, None] @ self.rotations[..., :half].to(wide)  # (B, H, R, N, b/2)
        size = p.abs()
        if real is not None:  # the number of buckets depends on the row's own tokens
            own = -(-real.sum(dim=1) // (2 * self.options.chunk))[:, None, None, None, None]
            size = size.masked_fill(torch.arange(half, device=q.device) >= own, -1)
        best = size.argmax(dim=-1, keepdim=True)
        bucket = (best + half * (p.gather(-1, best) < 0)).squeeze(-1)  # M36: the largest of [p, -p]
        key = bucket * N + place
        return (key if real is None else torch.where(real[:, None, None], key, 2 * half * N + place)).argsort(dim=-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        B, H = q.shape[:2]
        real = where.real
        q, k, v = clear_masked(real, q, k, v)
        count = None if real is None else real.sum(dim=1).repeat_interleave(H)  # (B H,)
        with keep_precision(v.device):
            order = self._order(q, real)
            q, k, v = (x.to(accumulator_precision(x.dtype)) for x in (q, k, v))
            q, k, v, order = (x.flatten(0, 1) for x in (q * self._scale, reformer_keys(k), v, order))
            return lsh_attention(q, k, v, order, count, self.options.chunk).unflatten(0, (B, H))

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        N, real = q.shape[2], where.real
        order = self._order(q, real)
        chunk = order.argsort(dim=-1) // min(self.options.chunk, N)  # (B, H, R, N): the chunk of each token
        gap = chunk[..., :, None] - chunk[..., None, :]
        seen = (gap == 0) | (gap == 1)
        if real is not None:
            seen = seen & real[:, None, None, None, :]
        times = seen.sum(dim=2)  # (B, H, N, N): in how many rounds t sees s
        scores = q @ reformer_keys(k).mT * self._scale
        scores = scores.masked_fill(torch.eye(N, dtype=torch.bool, device=q.device), SELF)
        blind = (times == 0).all(dim=-1, keepdim=True)
        scores = (scores + times.to(q.dtype).log()).masked_fill(blind, 0)
        return scores.softmax(dim=-1).masked_fill(blind, 0)
