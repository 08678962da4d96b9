"""BigBird (arXiv 2007.14062): softmax attention over a window, a few global and a few random blocks of keys.

Tokens form blocks of w. A block of queries sees its own block and its two neighbors, the first and the last block, and
random blocks that differ between heads. The first and the last block see everything.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from linnet.attention.base import Core
from linnet.config import Settings
from linnet.ops.block import block_turns, dense_block, pick_block_tokens
from linnet.ops.hashing import hash_below, hash_coordinates, new_hashing_seed
from linnet.ops.masks import Layout, clear_masked, visible_mask
from linnet.ops.pieces import Pieces, piece_attention
from linnet.ops.rules import BlockRule
from linnet.registry import ATTENTION

NONE = 2**31  # the number of an absent block


class BigBirdOptions(Settings):
    """`block` is w; `random` is the number of random blocks that a block of queries sees."""

    block: Annotated[int, Field(ge=1, le=2**20)] = 64
    random: Annotated[int, Field(ge=0, le=64)] = 3


@ATTENTION.add("bigbird")
class BigBirdAttention(Core):
    """Window, global and random blocks."""

    what = "softmax over a window, two global and three random blocks"
    paper = "Big Bird: Transformers for Longer Sequences, NeurIPS 2020, arXiv 2007.14062"
    cost = "N w D"
    causal_form = False
    packed = False
    seed: Tensor
    Options = BigBirdOptions
    options: BigBirdOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: BigBirdOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.register_buffer("seed", new_hashing_seed())

    def _seen(self, where: Layout, B: int) -> tuple[Tensor, Tensor]:
        """The blocks that each block of queries sees, (B,H,n,5+random), NONE where absent; the last block, (B,)."""
        n = -(-where.position.shape[-1] // self.options.block)
        i = torch.arange(n, device=self.seed.device)
        length = where.lengths(B)
        last = ((length - 1) // self.options.block).clamp(min=0)
        end, head = last[:, None, None], torch.arange(self.heads, device=i.device)[:, None]
        seen: list[Tensor] = []
        for block in (torch.zeros_like(i), end, i - 1, i, i + 1):
            block = block.expand(B, self.heads, n)
            seen.append(self._unless(block, (block < 0) | (block > end), seen))
        for d in range(self.options.random):
            taken = torch.stack(seen, dim=-1).sort(dim=-1).values
            free = end + 1 - (taken != NONE).sum(dim=-1)
            # One of the free blocks: its rank among them, moved past each taken block before it.
            block = hash_below(hash_coordinates(self.seed, head, i, torch.full_like(i, d)), free.clamp(min=1))
            for other in taken.unbind(dim=-1):
                block = block + (block >= other)
            seen.append(self._unless(block, free < 1, seen))
        return torch.stack(seen, dim=-1), last

    @staticmethod
    def _unless(block: Tensor, absent: Tensor, seen: list[Tensor]) -> Tensor:
        """`block`, but NONE where it is absent or already seen."""
        for other in seen:
            absent = absent | (block == other)
        return block.masked_fill(absent, NONE)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        if where.real is None:
            return self._rows(q, k, v, None, where)
        k, v = clear_masked(where.real, k, v)
        there, back = block_turns(where.real)
        q, k, v = (pick_block_tokens(x, there) for x in (q, k, v))
        return pick_block_tokens(self._rows(q, k, v, where.real.gather(1, there), where), back)

    def _rows(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, where: Layout) -> Tensor:
        """`attend` for rows that begin with their first real token."""
        seen, last = self._seen(where, 1 if real is None else len(q))  # (B, H, n, m), (B,): one row if all are alike
        w = min(self.options.block, q.shape[2])  # a block is never longer than its row
        o = piece_attention(q, k, v, real, self._pieces(seen, last, w, q.shape[2]), self.head_dim**-0.5)
        if o is not None:
            return o
        B = len(q)
        seen, last = seen.expand(B, -1, -1, -1), last.expand(B)
        return self._blocks(q, k, v, where.reals(B) if real is None else real, seen, last, w)

    @staticmethod
    def _pieces(seen: Tensor, last: Tensor, w: int, N: int) -> Pieces:
        """Each block sees its blocks; the first and the last block see the whole row as one piece."""
        start = (seen * w).clamp(max=N)  # an absent block starts at the end, where no key is left
        spans = torch.stack([start, (N - start).clamp(max=w)], dim=-1)  # (B, H, n, m, 2)
        block = torch.arange(seen.shape[2], device=seen.device)
        ends = (block == 0) | (block == last[:, None])  # (B, n)
        whole = torch.zeros_like(spans[0, 0, 0])
        whole[0, 1] = N
        return Pieces(w, torch.where(ends[:, None, :, None, None], whole, spans), max(N, seen.shape[3] * w))

    def _blocks(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, seen: Tensor, last: Tensor, w: int) -> Tensor:
        """`_rows` in PyTorch, from the blocks that each block sees."""
        B, H, N, D = q.shape
        rule = BlockRule("softmax", False, D**-0.5)
        n, m = seen.shape[2:]
        q, k, v = (F.pad(x, (0, 0, 0, n * w - N)).unflatten(2, (n, w)) for x in (q, k, v))  # (B, H, n, w, .)
        real = F.pad(real, (0, n * w - N))
        index = seen.where(seen != NONE, 0).flatten(2)  # (B, H, n m)

        def fetch(x: Tensor) -> Tensor:
            """The blocks of x (B,H,n,w,.) that each block sees, concatenated: (B,H,n,m w,.)."""
            found = x.flatten(3).gather(2, index[..., None].expand(-1, -1, -1, x[0, 0, 0].numel()))
            return found.view(B, H, n, m * w, -1)

        held = fetch(real.view(B, 1, n, w, 1).expand(-1, H, -1, -1, -1)).view(B, H, n, m, w) & (seen != NONE)[..., None]
        see = held.view(B, H, n, 1, m * w).expand(-1, -1, -1, w, -1)
        o = dense_block(q, fetch(k), fetch(v), see, rule)  # M33
        # The first and the last block of queries see every key.
        ends = torch.stack([torch.zeros_like(last), last], dim=1)  # (B, 2)
        edge = pick_block_tokens(q.flatten(3), ends).view(B, H, 2 * w, D)
        see = real[:, None, None].expand(-1, 1, 2 * w, -1)
        edge = dense_block(edge, k.flatten(2, 3), v.flatten(2, 3), see, rule).unflatten(2, (2, 1, w))
        which = torch.arange(n, device=q.device)[:, None, None]
        o = torch.where(which == 0, edge[:, :, 0], torch.where(which == last.view(B, 1, 1, 1, 1), edge[:, :, 1], o))
        return o.flatten(2, 3)[:, :, :N]

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        B, H, N, D = q.shape
        seen, last = self._seen(where, B)
        block = torch.arange(seen.shape[2], device=q.device)
        pairs = (seen[..., None] == block).any(dim=3)  # (B, H, n, n): whether the row's block sees the column's
        pairs = pairs | (block == 0)[:, None] | (block == last[:, None])[:, None, :, None]
        own = (where.position // self.options.block).expand(B, -1)[:, None]  # (B, 1, N)
        pairs = pairs.gather(2, own[..., None].expand(-1, H, -1, len(block)))  # (B, H, N, n)
        see = pairs.gather(3, own[:, :, None].expand(-1, H, N, -1)) & visible_mask(where, False)
        blind = ~see.any(dim=-1, keepdim=True)
        scores = (q @ k.mT * D**-0.5).masked_fill(~(see | blind), -torch.inf)
        return scores.softmax(dim=-1).masked_fill(~see, 0)  # M33
