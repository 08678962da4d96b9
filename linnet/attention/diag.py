"""DiagAttention of TransNormer (arXiv 2210.10340): softmax or ReLA attention inside non-overlapping blocks.

Linear attention spreads its weight over distant tokens; the early layers of TransNormer attend inside blocks of w tokens
only. `kind="rela"` (T1) takes the ReLU of the scores and ends with SRMS; `kind="softmax"` (T2) has no norm.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from linnet.attention.base import Core, Positions, RelativePositions, State, positions_of
from linnet.config import Section
from linnet.ops import block_attention, reference
from linnet.ops.block import Rule, attend_blocks, dense
from linnet.ops.layout import layout
from linnet.ops.rms import srms
from linnet.registry import ATTENTION


class DiagOptions(Section):
    """`block` is w of the paper; `dropout` drops weights while training."""

    kind: Literal["softmax", "rela"] = "softmax"
    block: Annotated[int, Field(ge=1)] = 64
    positions: Positions = "lrpe"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


@ATTENTION.add("diag")
class DiagAttention(Core):
    """Attention inside blocks of w tokens."""

    what = "softmax or ReLA inside non-overlapping blocks"
    paper = "The Devil in Linear Transformer, EMNLP 2022, arXiv 2210.10340"
    cost = "N w D"
    Options = DiagOptions
    options: DiagOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: DiagOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.positions = RelativePositions(options.positions, head_dim)

    def _rule(self, causal: bool) -> Rule:
        return Rule(self.options.kind, causal, self.head_dim**-0.5, self.options.dropout if self.training else 0.0)

    def _rotated(self, q: Tensor, k: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Positions restart in each block; only differences inside a block matter."""
        own = position % self.options.block
        return self.positions(q, own), self.positions(k, own)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, key_mask: Tensor | None, segments: Tensor | None
    ) -> Tensor:
        q, k = self._rotated(q, k, positions_of(q, key_mask, segments)[0])
        rule, block = self._rule(causal), self.options.block
        return block_attention(q, k, v, block, rule.kind, causal, key_mask, segments, dropout=rule.dropout)

    def dense(self, q: Tensor, k: Tensor, causal: bool, key_mask: Tensor | None, segments: Tensor | None) -> Tensor:
        where = layout(q.shape[0], q.shape[2], key_mask, segments, q.device)
        q, k = self._rotated(q, k, where.position)
        return reference.block_weights(q, k, where, self.options.block, self.options.kind, causal)  # M5, M6

    def finish(self, o: Tensor) -> Tensor:
        return srms(o, dim=(1, 3)) if self.options.kind == "rela" else o

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: State | None
    ) -> tuple[Tensor, State]:
        """The state is the open block: keys and values (B,H,w,.), which are real (B,w), and positions so far (B,)."""
        B, H, N, _ = q.shape
        w = self.options.block
        if state is None:
            start, open_real = torch.zeros(B, dtype=torch.int64, device=q.device), None
            open_k, open_v = k.new_zeros(B, H, w, k.shape[3]), v.new_zeros(B, H, w, v.shape[3])
            open_real = torch.zeros(B, w, dtype=torch.bool, device=q.device)
        else:
            open_k, open_v, open_real, start = state
        position, length = positions_of(q, key_mask, None, start)
        q, k = self._rotated(q, k, position)
        # Slot j of the open block is moved to end right before the first new token: one contiguous row of w + N.
        slot = torch.arange(w, device=q.device) - (w - start % w)[:, None]  # (B, w), negative: empty
        turn = slot % w
        k, v = (torch.cat([_pick(x, turn), new], dim=2) for x, new in ((open_k, k), (open_v, v)))
        real = torch.ones(B, N, dtype=torch.bool, device=q.device) if key_mask is None else key_mask.bool()
        real = torch.cat([open_real.gather(1, turn) & (slot >= 0), real], dim=1)  # (B, w + N)
        position = torch.cat([(start[:, None] // w) * w + slot, position.expand(B, N)], dim=1)
        ids = torch.div(position, w, rounding_mode="floor")
        o = attend_blocks(torch.cat([torch.zeros_like(k[:, :, :w]), q], dim=2), k, v, ids, real, w, self._rule(True))
        # The new open block ends with the token at position length - 1, which is number length - start + w - 1 of the row.
        end = length - start + w + _leading(key_mask, B, q.device)
        slots = torch.arange(w, device=q.device)
        index = (end - length % w)[:, None] + slots  # (B, w)
        kept = slots < (length % w)[:, None]
        index = index.clamp(0, w + N - 1)
        return o[:, :, w:], (_pick(k, index), _pick(v, index), real.gather(1, index) & kept, length)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        open_k, open_v, real, start = state
        w = self.options.block
        q, k = self._rotated(q, k, start[:, None])
        slot = torch.arange(w, device=q.device)
        here, past = slot == (start % w)[:, None], slot < (start % w)[:, None]  # (B, w)
        open_k, open_v = (torch.where(here[:, None, :, None], new, x) for new, x in ((k, open_k), (v, open_v)))
        real = (real & past) | here
        o = dense(q, open_k, open_v, real[:, None, None, :], self._rule(False))
        return self.finish(o), (open_k, open_v, real, start + 1)


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """Tokens of x (B,H,N,D) by index (B,n)."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def _leading(key_mask: Tensor | None, B: int, device: torch.device) -> Tensor:
    """(B,) number of masked tokens before the first real one."""
    if key_mask is None:
        return torch.zeros(B, dtype=torch.int64, device=device)
    return (key_mask.bool().cumsum(dim=1) == 0).sum(dim=1) % key_mask.shape[1]
