"""DiagAttention of TransNormer (arXiv 2210.10340): softmax or ReLA attention inside non-overlapping blocks.

Linear attention spreads its weight over distant tokens, so the early layers of TransNormer attend only inside blocks of
w tokens. `kind="rela"` (T1) takes the ReLU of the scores and ends with SRMS; `kind="softmax"` (T2) has no norm.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from linnet.attention.base import Core
from linnet.attention.cut import grid_cut_hurdle
from linnet.attention.relative import Positions, RelativePositions
from linnet.config import Settings
from linnet.ops import reference
from linnet.ops.block import (
    attend_given_blocks,
    attend_in_blocks,
    attend_in_blocks_dropping,
    attend_in_blocks_torch,
    block_turns,
    dense_block,
    pick_block_tokens,
)
from linnet.ops.cut import attend_blocks_of_cut
from linnet.ops.masks import Layout, clear_masked
from linnet.ops.precision import State, accumulator_precision
from linnet.ops.rms import srms
from linnet.ops.rules import BlockRule
from linnet.registry import ATTENTION


class DiagOptions(Settings):
    """`block` is w of the paper; `dropout` drops weights while training."""

    kind: Literal["softmax", "rela"] = "softmax"
    block: Annotated[int, Field(ge=1, le=2**20)] = 64
    positions: Positions = "lrpe"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


def _attend_dropping(q: Tensor, k: Tensor, v: Tensor, where: Layout, block: int, rule: BlockRule) -> Tensor:
    """`attend_in_blocks` with dropout."""
    o = attend_in_blocks_dropping(q, k, v, where, block, rule)
    return attend_in_blocks_torch(q, k, v, where, block, rule) if o is None else o


@ATTENTION.add("diag")
class DiagAttention(Core):
    """Attention inside blocks of w tokens."""

    what = "softmax or ReLA inside non-overlapping blocks"
    paper = "The Devil in Linear Transformer, EMNLP 2022, arXiv 2210.10340"
    cost = "N w D"
    qkv_gain = 1.0  # as in the released code; all other mechanisms use 1/sqrt(2)
    Options = DiagOptions
    options: DiagOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: DiagOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.positions = RelativePositions(options.positions, head_dim)
        near = "input" if options.kind == "softmax" else "sum"
        self.state_types = (near, near, "flag", "count")

    def cut_hurdle(self) -> str:
        """None but a grid of positions: a block that a cut splits borrows its other keys and values."""
        return grid_cut_hurdle(self.relative)

    def _rule(self, causal: bool) -> BlockRule:
        return BlockRule(self.options.kind, causal, self.head_dim**-0.5, self.options.dropout if self.training else 0.0)

    def _wide(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """ReLA has no normalizer, so its sums stay float32 until its norm."""
        if self.options.kind == "softmax":
            return tensors
        return tuple(x.to(accumulator_precision(x.dtype)) for x in tensors)

    def _rotated(self, q: Tensor, k: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """Positions restart in each block; only differences inside a block matter."""
        if self.options.positions == "rope2d":
            return self.positions(position, q, k)
        return self.positions(position % self.options.block, q, k)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        q, k, v = self._wide(*self._rotated(q, k, where.position), v)
        rule, block = self._rule(causal), self.options.block
        return attend_blocks_of_cut(q, k, v, where, block, rule, _attend_dropping if rule.dropout else attend_in_blocks)

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        q, k = self._rotated(q, k, where.position)
        return reference.reference_block_weights(q, k, where, self.options.block, self.options.kind, causal)  # M5, M6

    def finish(self, o: Tensor) -> Tensor:
        return srms(o, dim=(1, 3)) if self.options.kind == "rela" else o

    def extend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, state: State | None) -> tuple[Tensor, State]:
        """The state: keys and values of the open block (B,H,w,.), which are real (B,w), and positions so far (B,)."""
        B, H, N, _ = q.shape
        w = self.options.block
        real = where.reals(B)
        q, k, v = self._wide(q, *clear_masked(where.real, k, v))
        if state is None:
            state = (
                k.new_zeros(B, H, w, k.shape[3]),
                v.new_zeros(B, H, w, v.shape[3]),
                torch.zeros(B, w, dtype=torch.bool, device=q.device),
                torch.zeros(B, dtype=torch.int64, device=q.device),
            )
        open_k, open_v, open_real, start = state
        there, back = block_turns(real)
        q, k, v = (pick_block_tokens(x, there) for x in (q, k, v))
        real = real.gather(1, there)
        length = where.lengths(B)
        position = torch.minimum(torch.arange(N, device=q.device), (length - 1).clamp(min=0)[:, None]) + start[:, None]
        length = length + start
        q, k = self._rotated(q, k, position)
        # The open block moves to end right before the first new token: one contiguous row of w + N.
        slot = torch.arange(w, device=q.device) - (w - start % w)[:, None]  # (B, w), negative: empty
        k, v = (torch.cat([pick_block_tokens(x, slot % w), new], dim=2) for x, new in ((open_k, k), (open_v, v)))
        real = torch.cat([open_real.gather(1, slot % w) & (slot >= 0), real], dim=1)  # (B, w + N)
        ids = torch.div(torch.cat([(start // w * w)[:, None] + slot, position], dim=1), w, rounding_mode="floor")
        q = torch.cat([torch.zeros_like(k[:, :, :w]), q], dim=2)
        o = attend_given_blocks(q, k, v, ids, real, w, self._rule(True))[:, :, w:]
        # The next token would be number w + length - start of that row; from there the start of its block follows:
        index = (w + length - start - length % w)[:, None] + torch.arange(w, device=q.device)  # (B, w)
        kept = torch.arange(w, device=q.device) < (length % w)[:, None]
        index = index.clamp(max=w + N - 1)
        return pick_block_tokens(o, back), (
            pick_block_tokens(k, index),
            pick_block_tokens(v, index),
            real.gather(1, index) & kept,
            length,
        )

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        H, w = self.heads, self.options.block
        return [(B, H, w, self.head_dim), (B, H, w, E), (B, w), (B,)]

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        open_k, open_v, real, start = state
        w = self.options.block
        slot, own = torch.arange(w, device=q.device), (start % w)[:, None]  # (w,), (B, 1)
        q, k, v = self._wide(*self.positions(own, q, k), v)
        here, past = slot == own, slot < own  # (B, w)
        open_k, open_v = (torch.where(here[:, None, :, None], new, x) for new, x in ((k, open_k), (v, open_v)))
        real = (real & past) | here
        o = dense_block(q, open_k, open_v, real[:, None, None, :], self._rule(False))
        return o, (open_k, open_v, real, start + 1)
