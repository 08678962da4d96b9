"""Softmax attention, the vanilla mechanism: softmax(q k^T / sqrt(D)) v, through scaled_dot_product_attention.

On a CPU, with dropout or a mask, it runs on the kernels of block attention: a row or segment is one block.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from linnet.attention.base import Core
from linnet.attention.relative import Positions, RelativePositions
from linnet.attention.rows import visible_past_of_rows
from linnet.config import Settings
from linnet.errors import InputError
from linnet.ops import reference
from linnet.ops.block import attend_in_blocks_dropping, dense_block
from linnet.ops.masks import Layout, clear_masked, visible_mask
from linnet.ops.precision import State
from linnet.ops.rules import BlockRule
from linnet.registry import ATTENTION


class SoftmaxOptions(Settings):
    """`positions` rotates queries and keys; `dropout` drops weights while training."""

    positions: Positions = "none"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


@ATTENTION.add("softmax")
class SoftmaxAttention(Core):
    """The quadratic mechanism that the others are measured against."""

    what = "softmax over all keys"
    paper = "Attention Is All You Need, NeurIPS 2017, arXiv 1706.03762"
    cost = "N^2 D"
    cross = True
    state_types = ("input", "input", "flag", "count")
    Options = SoftmaxOptions
    options: SoftmaxOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: SoftmaxOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.positions = RelativePositions(options.positions, head_dim)

    def _rule(self, causal: bool) -> BlockRule:
        return BlockRule("softmax", causal, self.head_dim**-0.5, self.options.dropout if self.training else 0.0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        q, k = self.positions(where.position, q, k)
        rule, whole = self._rule(causal), where.real is None and where.run is None
        # torch's fused kernel has no dropout and reads an N x N mask; block kernels skip queries at masked keys
        if where.queries is None and (rule.dropout or not whole):
            o = attend_in_blocks_dropping(q, k, v, where, q.shape[2], rule)
            if o is not None:
                return o
        if whole:
            return dense_block(q, k, v, None, rule)
        k, v = clear_masked(where.real, k, v)
        return dense_block(q, k, v, visible_mask(where, causal), self._rule(False))

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        q, k = self.positions(where.position, q, k)
        return reference.reference_block_weights(q, k, where, q.shape[2], "softmax", causal)  # M5, one block

    def rows(self, q: Tensor, k: Tensor, start: int, stop: int) -> Tensor:
        N = q.shape[2]
        position = torch.arange(N, device=q.device)
        q, k = self.positions(position, q, k)
        scores = q[:, :, start:stop] @ k.mT * self.head_dim**-0.5
        if self.causal:
            scores = scores.masked_fill(~visible_past_of_rows(start, stop, N, q.device), -torch.inf)
        return scores.softmax(dim=-1)  # M5, one block

    def extend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, state: State | None) -> tuple[Tensor, State]:
        """The state is the cache: keys, values, which of them are real (B, N), and the number of positions (B,)."""
        B, _, N, _ = q.shape
        where = where.after(None if state is None else state[3])
        q, k = self.positions(where.position, q, k)
        (k, v), real = clear_masked(where.real, k, v), where.reals(B)
        see = torch.ones(N, N, dtype=torch.bool, device=q.device).tril() & real[:, None, None, :]  # (B, 1, N, N)
        if state is not None:
            old_k, old_v, old_real, _ = state
            if not old_k.shape[2] == old_v.shape[2] == old_real.shape[1]:
                raise InputError("state holds keys, values and flags of unequal lengths: they must be equal")
            see = torch.cat([old_real[:, None, None].expand(-1, 1, N, -1), see], dim=3)  # (B, 1, N, old + N)
            k, v = torch.cat([old_k, k], dim=2), torch.cat([old_v, v], dim=2)
            real = torch.cat([old_real, real], dim=1)
        return dense_block(q, k, v, see, self._rule(False)), (k, v, real, where.lengths(B))

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        return [(B, self.heads, None, self.head_dim), (B, self.heads, None, E), (B, None), (B,)]
