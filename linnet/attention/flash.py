"""FLASH, the gated unit of "Transformer Quality in Linear Time" (arXiv 2202.10447), with mixed chunk attention.

Inside chunks of C tokens it is FLASH-quad; between chunks it is linear attention of two further maps of Z. In the
causal form a chunk reads the sum of k v^T over the chunks before it, in the bidirectional form over all chunks.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from linnet.attention.flash_quad import GatedOptions, GatedUnit, Width
from linnet.ops.block import block_turns, pick_block_tokens
from linnet.ops.chunked_relu import chunked_relu_attention
from linnet.ops.masks import Layout, clear_masked, visible_mask
from linnet.ops.precision import State, accumulator_precision, keep_precision
from linnet.registry import ATTENTION


class FlashOptions(GatedOptions):
    """The options of `flash_quad`, and C."""

    chunk: Width = 64


@ATTENTION.add("flash")
class FlashAttention(GatedUnit):
    """Squared ReLU inside chunks, linear attention between them."""

    what = "gated unit, squared ReLU scores inside chunks, linear between them, mixer only"
    cost = "N (C + s) e"
    maps = 4
    state_types = ("sum", "sum", "sum", "sum", "flag", "count")
    Options = FlashOptions
    options: FlashOptions

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        v = v.to(accumulator_precision(v.dtype))
        k, v = clear_masked(where.real, k, v)
        parts = self._parts(q, k, where.position)
        with keep_precision(v.device):
            if where.real is None:
                return self._rows(parts, v, None, causal)
            there, back = block_turns(where.real)
            *parts, v = (pick_block_tokens(x, there) for x in (*parts, v))
            return pick_block_tokens(self._rows(parts, v, where.real.gather(1, there), causal), back)

    def _rows(self, parts: list[Tensor], v: Tensor, real: Tensor | None, causal: bool) -> Tensor:
        """o of rows whose chunks start at 0: causal ones on a CPU chunk by chunk, others all chunks at once."""
        if v.device.type != "cpu" or not causal:  # the op rounds a short last chunk differently beside padding
            return self._chunked(parts, v, real, causal)[0]
        C = min(self.options.chunk, v.shape[2])
        bias = self.bias(torch.arange(C - 1, -C, -1, device=v.device), v.dtype)
        near_q, far_q, near_k, far_k, v = (x.squeeze(1) for x in (*parts, v))
        return chunked_relu_attention(near_q, far_q, near_k, far_k, v, bias).unsqueeze(1)

    def _parts(self, q: Tensor, k: Tensor, position: Tensor) -> list[Tensor]:
        """Near and far queries, then near and far keys; keys are divided by C at any length."""
        near_q, far_q, near_k, far_k = self.features(q, k, position)
        return [near_q, far_q, near_k / self.options.chunk, far_k / self.options.chunk]

    def _chunked(
        self, parts: list[Tensor], v: Tensor, real: Tensor | None, causal: bool, state: State | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """o of rows (B,1,T,.) whose chunks start at 0, then k v^T before and in each chunk (B,T/C,s,e) where causal.

        `state`: the sum before the first chunk, and the sum of earlier keys in the first chunk.
        """
        T = v.shape[2]
        C = min(self.options.chunk, -(-T // 64) * 64)  # a single chunk need not be much longer than its row
        if real is not None:
            parts[3] = parts[3].masked_fill(~real[:, None, :, None], 0)
        v = F.pad(v, (0, 0, 0, -T % C)) if T % C else v  # padding by nothing would copy the wide values
        parts = [F.pad(x, (0, 0, 0, -T % C)) for x in parts]
        near_q, far_q, near_k, far_k, v = (x.squeeze(1).unflatten(1, (-1, C)) for x in (*parts, v))
        A = (near_q @ near_k.mT + self.bias.matrix(C, v.dtype)).relu().square()  # (B, T/C, C, C)
        A = A.tril() if causal else A
        if real is not None:
            A = A.masked_fill(~F.pad(real, (0, -T % C)).view(len(real), -1, 1, C), 0)
        if not causal:  # all chunks read one sum, so two products serve them all
            near, S = (A @ v).flatten(1, 2), far_k.flatten(1, 2).mT @ v.flatten(1, 2)  # (B, T, e), (B, s, e)
            return torch.baddbmm(near, far_q.flatten(1, 2), S)[:, None, :T], S, S
        within = far_k.mT @ v  # (B, T/C, s, e)
        before = torch.zeros_like(within[:, :1])
        if state is not None:
            before = before + state[0]
            within = torch.cat([within[:, :1] + state[1], within[:, 1:]], dim=1)
        before = torch.cat([before, within[:, :-1]], dim=1).cumsum(dim=1)  # M29
        return (A @ v + far_q @ before).flatten(1, 2)[:, None, :T], before, within

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        near_q, far_q, near_k, far_k = self.features(q, k, where.position)
        see, C = visible_mask(where, causal), self.options.chunk
        own = (where.position // C).expand(q.shape[0], -1)[:, None]  # (B, 1, N)
        same, before = (op(own[..., None, :], own[..., :, None]) for op in (torch.eq, torch.lt))
        near = (near_q @ near_k.mT / C + self.bias.matrix(q.shape[2], near_q.dtype)).relu().square()
        far = far_q @ far_k.mT / C
        return torch.where(see & same, near, 0) + torch.where(see & before if causal else see, far, 0)  # M28

    def extend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, state: State | None) -> tuple[Tensor, State]:
        """The state: k v^T before the open chunk and in it (B,1,s,e), its near keys and values (B,1,C,.), which of
        them are real (B,C), and positions so far (B,)."""
        B, _, N, _ = q.shape
        C, v = self.options.chunk, v.to(accumulator_precision(v.dtype))
        (k, v), real = clear_masked(where.real, k, v), where.reals(B)
        S, S_open, open_k, open_v, open_real, start = self._empty(v) if state is None else state
        where = where.after(start)
        length = where.lengths(B)
        there, back = block_turns(real)
        news = [pick_block_tokens(x, there) for x in (*self._parts(q, k, where.position), v)]
        # A row of C + N slots whose chunks start at 0: the open chunk, then the new tokens from slot start % C on.
        slot, first = torch.arange(C + N, device=q.device), (start % C)[:, None]
        source = torch.where(slot < first, slot, slot + C - first).clamp(max=C + N - 1)  # (B, C + N)
        blank = torch.zeros_like(open_k)
        olds = (blank, blank, open_k, blank, open_v)
        *parts, v = (pick_block_tokens(torch.cat(pair, dim=2), source) for pair in zip(olds, news, strict=True))
        held = torch.cat([open_real, real.gather(1, there)], dim=1).gather(1, source) & (slot < first + N)
        with keep_precision(v.device):
            o, before, within = self._chunked(parts, v, held, True, (S, S_open))
        o = pick_block_tokens(pick_block_tokens(o, first + torch.arange(N, device=q.device)), back)
        used = first + (length - start)[:, None]  # occupied slots of the row
        row, now = torch.arange(B, device=q.device), (used // C).squeeze(1)  # the open chunk
        index = (used // C * C + torch.arange(C, device=q.device)).clamp(max=C + N - 1)
        kept = held.gather(1, index) & (torch.arange(C, device=q.device) < used % C)
        S, S_open = before[row, now][:, None], within[row, now][:, None]
        return o, (S, S_open, pick_block_tokens(parts[2], index), pick_block_tokens(v, index), kept, length)

    def _empty(self, v: Tensor) -> State:
        """The state before the first token."""
        B, E = v.shape[0], v.shape[3]
        s, C = self.head_dim, self.options.chunk
        S = v.new_zeros(B, 1, s, E)
        real = torch.zeros(B, C, dtype=torch.bool, device=v.device)
        count = torch.zeros(B, dtype=torch.int64, device=v.device)
        return S, S, v.new_zeros(B, 1, C, s), v.new_zeros(B, 1, C, E), real, count

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        s, C = self.head_dim, self.options.chunk
        return [(B, 1, s, E), (B, 1, s, E), (B, 1, C, s), (B, 1, C, E), (B, C), (B,)]

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        S, S_open, keys, values, real, start = state
        C, v = self.options.chunk, v.to(S.dtype)
        near_q, far_q, near_k, far_k = self._parts(q, k, start[:, None])
        slot, own = torch.arange(C, device=q.device), (start % C)[:, None]  # (C,), (B, 1)
        here, past = slot == own, slot < own
        keys, values = (torch.where(here[:, None, :, None], new, x) for new, x in ((near_k, keys), (v, values)))
        real = (real & past) | here
        bias = self.bias(torch.arange(1 - C, C, device=q.device), v.dtype)[own - slot + C - 1]  # (B, C)
        A = (near_q @ keys.mT + bias[:, None, None]).relu().square().masked_fill(~real[:, None, None], 0)
        o = A @ values + far_q @ S
        S_open = torch.addcmul(S_open, far_k.mT, v)
        full = (own == C - 1)[..., None, None]  # the chunk ends here
        S, S_open = torch.where(full, S + S_open, S), S_open.masked_fill(full, 0)
        return o, (S, S_open, keys, values, real, start + 1)
