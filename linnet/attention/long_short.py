"""Transformer-LS, "Long-Short Transformer" (arXiv 2107.02192): a window of keys and a few compressed ones, one softmax.

Bidirectional: r landmarks, each a learned average over the whole row. Causal: one landmark for every completed chunk.
Keys and values first pass a LayerNorm over the merged heads, one for the window and one for the landmarks.
"""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from linnet.attention.base import Core
from linnet.config import Settings
from linnet.errors import InputError
from linnet.ops.backend import cpu_backend_serves
from linnet.ops.block import block_turns, pick_block_tokens
from linnet.ops.masks import Layout, clear_masked, layout_of_masks, visible_mask
from linnet.ops.pieces import Pieces, piece_attention
from linnet.ops.precision import State, accumulator_precision, keep_precision
from linnet.registry import ATTENTION

Size = Annotated[int, Field(ge=1, le=2**20)]
UNIT = 64  # queries that share the keys of their windows, bidirectional


class LongShortOptions(Settings):
    """`landmarks`: r, bidirectional; `chunk`: tokens per landmark, causal; `window`: None is 8, causal 64.

    `compress`: landmarks are averages of the keys and values as they are, or after the norm of the window.
    """

    landmarks: Size = 32
    chunk: Size = 32
    window: Size | None = None
    dual_norm: bool = True
    compress: Literal["raw", "normed"] = "raw"


def _masked_softmax(scores: Tensor, see: Tensor | None) -> Tensor:
    """Softmax over the last axis, restricted to `see` if given; a row that sees nothing is 0."""
    if see is None:
        return scores.softmax(dim=-1)
    blind = ~see.any(dim=-1, keepdim=True)
    return torch.where(see | blind, scores, -torch.inf).softmax(dim=-1).masked_fill(~see, 0)


def _present(real: Tensor | None, k: Tensor) -> Tensor:
    """Which tokens are real, (B,N): by default all."""
    return torch.ones(len(k), k.shape[2], dtype=torch.bool, device=k.device) if real is None else real


@ATTENTION.add("long_short")
class LongShortAttention(Core):
    """Window and landmarks in one softmax."""

    what = "a window and compressed keys in one softmax"
    paper = "Long-Short Transformer, NeurIPS 2021, arXiv 2107.02192"
    cost = "N (w + r) D, causal N^2 D / 32"
    packed = False
    state_types = ("sum", "sum", "flag", "sum", "sum", "flag", "count")
    Options = LongShortOptions
    options: LongShortOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: LongShortOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        M = heads * head_dim
        self.compress: nn.Module = nn.Linear(M, heads * (1 if causal else options.landmarks))
        self.near_norm = nn.LayerNorm(M) if options.dual_norm else None
        self.far_norm = nn.LayerNorm(M) if options.dual_norm else None

    def _window(self, causal: bool) -> tuple[int, int, int]:
        """w, and how many keys a query sees before and after its own block."""
        w = self.options.window or (64 if causal else 8)
        return w, w // 2, 0 if causal else w // 2

    def _normed(self, norm: nn.LayerNorm | None, *tensors: Tensor) -> list[Tensor]:
        """Keys and values (B,H,n,.), each normed over its merged heads."""
        if norm is None:
            return list(tensors)
        gain, shift = (p.to(tensors[0].dtype) for p in (norm.weight, norm.bias))
        done = []
        for x in tensors:
            if x.shape[3] != self.head_dim:
                raise InputError(f"v has width {x.shape[3]}: dual_norm=True was built for {self.head_dim}")
            merged = F.layer_norm(x.transpose(1, 2).flatten(2), norm.normalized_shape, gain, shift, norm.eps)
            done.append(merged.unflatten(2, (self.heads, -1)).transpose(1, 2))
        return done

    def _logits(self, k: Tensor) -> Tensor:
        """(B,H,r,N): the score of each token for each landmark of a head, from the keys of all heads."""
        merged, layer = k.transpose(1, 2).flatten(2), self.compress
        if isinstance(layer, nn.Linear):
            logits = F.linear(merged, layer.weight.to(k.dtype), layer.bias.to(k.dtype))
        else:  # wrapped or quantized by the user
            logits = layer(merged)
        return logits.mT.unflatten(1, (self.heads, -1))

    def _compressed(self, *tensors: Tensor) -> list[Tensor]:
        """The keys and values that landmarks average."""
        return self._normed(self.near_norm if self.options.compress == "normed" else None, *tensors)

    def _landmarks(self, k: Tensor, v: Tensor, real: Tensor | None, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Normed landmarks (B,H,R,.) of rows whose chunks start at 0, and which of them cover a real token (B,R)."""
        logits, c = self._logits(k), min(self.options.chunk, k.shape[2])
        k, v = self._compressed(k, v)
        if not causal:
            P = _masked_softmax(logits, None if real is None else real[:, None, None])  # M31
            far_k, far_v = self._normed(self.far_norm, P @ k, P @ v)
            return far_k, far_v, _present(real, k).any(dim=1, keepdim=True).expand(-1, logits.shape[2])
        extra, real = -k.shape[2] % c, _present(real, k)
        k, v = (F.pad(x, (0, 0, 0, extra)).unflatten(2, (-1, c)) for x in (k, v))  # (B, H, n, c, .)
        real = F.pad(real, (0, extra)).unflatten(1, (-1, c))  # (B, n, c)
        P = _masked_softmax(F.pad(logits[:, :, 0], (0, extra)).unflatten(2, (-1, c)), real[:, None])[..., None, :]
        far_k, far_v = self._normed(self.far_norm, (P @ k).squeeze(3), (P @ v).squeeze(3))
        return far_k, far_v, real.any(dim=2)

    def _join(
        self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, causal: bool, far: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        """o of rows whose blocks start at 0; `far`: landmarks, their values, and which of them each query sees."""
        N = q.shape[2]
        w, before, after = self._window(causal)
        if w > N:  # a block is never longer than its row
            w, before, after = N, 0, 0
        extra, size = -N % w, before + w + after
        k, v = self._normed(self.near_norm, k, v)
        q = F.pad(q * self.head_dim**-0.5, (0, 0, 0, extra)).unflatten(2, (-1, w))  # (B, H, n, w, D)
        k, v = (F.pad(x, (0, 0, before, extra + after)).unfold(2, size, w) for x in (k, v))  # (B, H, n, ., size)
        see = F.pad(real, (before, extra + after)).unfold(1, size, w)[:, None, :, None]  # (B, 1, n, 1, size)
        if causal:
            see = see & torch.ones(w, size, dtype=torch.bool, device=q.device).tril(before)
        far_k, far_v, far_see = far
        # Padded as numbers: inductor's C++ for a padded bool that comes from a comparison of integers does not compile.
        far_see = F.pad(far_see.expand(-1, N, -1).to(q.dtype), (0, 0, 0, extra)) > 0
        far_see = far_see.unflatten(1, (-1, w))[:, None]  # (B, 1, n, w, R)
        scores = torch.cat([q @ k, q @ far_k.mT[:, :, None]], dim=-1)
        A = _masked_softmax(scores, torch.cat([see.expand(*far_see.shape[:-1], size), far_see], dim=-1))  # M32
        o = A[..., :size] @ v.mT + A[..., size:] @ far_v[:, :, None]
        return o.flatten(2, 3)[:, :, :N]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        real = where.real
        q, k, v = (x.to(accumulator_precision(x.dtype)) for x in (q, k, v))
        with keep_precision(v.device):
            if real is None:
                return self._rows(q, k, v, None, causal)
            k, v = clear_masked(real, k, v)
            there, back = block_turns(real)
            q, k, v = (pick_block_tokens(x, there) for x in (q, k, v))
            return pick_block_tokens(self._rows(q, k, v, real.gather(1, there), causal), back)

    def _rows(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, causal: bool) -> Tensor:
        """`attend` for rows that begin with their first real token."""
        far_k, far_v, exists = self._landmarks(k, v, real, causal)
        N, R = q.shape[2], far_k.shape[2]
        if cpu_backend_serves(q, v):
            near_k, near_v = self._normed(self.near_norm, k, v)
            real = None if real is None else torch.cat([real, exists], dim=1)
            k, v = torch.cat([near_k, far_k], dim=2), torch.cat([near_v, far_v], dim=2)
            o = piece_attention(q, k, v, real, self._pieces(N, R, causal, q), self.head_dim**-0.5)  # M32
            assert o is not None
            return o
        far_see = exists[:, None]  # (B, 1, R)
        if causal:
            own = torch.arange(N, device=q.device) // self.options.chunk
            far_see = far_see & (torch.arange(R, device=q.device) < own[:, None])  # (B, N, R)
        return self._join(q, k, v, _present(real, k), causal, (far_k, far_v, far_see))

    def _pieces(self, N: int, R: int, causal: bool, q: Tensor) -> Pieces:
        """For N tokens and then R landmarks as keys: a unit of queries sees a window, then landmarks."""
        w, before, after = self._window(causal)
        t = torch.arange(N, device=q.device)
        band = torch.stack([t // w * w - before, t + 1 if causal else t // w * w + w + after], dim=1)  # (N, 2)
        unit = math.gcd(w, self.options.chunk) if causal else max(1, UNIT // w) * w
        first = t[::unit]
        last = (first + unit).clamp(max=N) - 1
        start, stop = band[first, 0].clamp(min=0), band[last, 1].clamp(max=N)
        many = first // self.options.chunk if causal else torch.full_like(first, R)
        windows, landmarks = torch.stack([start, stop - start]), torch.stack([torch.full_like(first, N), many])
        spans = torch.stack([windows, landmarks], dim=-1).permute(1, 2, 0)[None, None]  # (1, 1, units, 2, 2)
        return Pieces(unit, spans, min(N, before + unit + w + after) + R, band)

    def _dense_parts(
        self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool, rows: slice = slice(None)
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights of the window (B,H,N,N) and of landmarks (B,H,N,R), the landmarks' averages (B,H,R,N) and values.

        `rows` selects queries.
        """
        B, N = q.shape[0], q.shape[2]
        real = visible_mask(where, False).expand(B, 1, 1, N)
        position = where.position.expand(B, -1)[:, None]  # (B, 1, N)
        q, t, s = q[:, :, rows], position[..., rows, None], position[..., None, :]
        w, before, after = self._window(causal)
        near = visible_mask(where, causal).expand(-1, -1, N, -1)[:, :, rows]
        near = near & (s >= t // w * w - before) & (s < t // w * w + w + after)
        logits, chunks = self._logits(k), torch.arange(N // self.options.chunk + 1, device=q.device)[:, None]
        if causal:
            logits, member = logits[:, :, :1], real & (s // self.options.chunk == chunks)
        else:
            member = real.expand(-1, -1, logits.shape[2], -1)
        P = _masked_softmax(logits.expand(-1, -1, member.shape[2], -1), member)  # M31
        compressed_k, compressed_v = self._compressed(k, v)
        far_k, far_v = self._normed(self.far_norm, P @ compressed_k, P @ compressed_v)
        far = member.any(dim=-1)[:, :, None].expand(-1, -1, q.shape[2], -1)
        if causal:
            far = far & (chunks.mT < t // self.options.chunk)
        (near_k,) = self._normed(self.near_norm, k)
        scores = torch.cat([q @ near_k.mT, q @ far_k.mT], dim=-1) * self.head_dim**-0.5
        A = _masked_softmax(scores, torch.cat([near.expand(B, -1, -1, -1), far], dim=-1))  # M32
        return A[..., :N], A[..., N:], P, far_v

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        near, far, P, _ = self._dense_parts(q, k, k, where, causal)
        return near + far @ P

    def rows(self, q: Tensor, k: Tensor, start: int, stop: int) -> Tensor:
        where = layout_of_masks(q.shape[0], q.shape[2], None, None, q.device)
        near, far, P, _ = self._dense_parts(q, k, k, where, self.causal, slice(start, stop))
        return near + far @ P

    def definition(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        near, far, _, far_v = self._dense_parts(q, k, v, where, causal)
        (v,) = self._normed(self.near_norm, v)
        return near @ v + far @ far_v

    @property
    def _page(self) -> int:
        """Blocks and chunks both begin at multiples of it."""
        return math.lcm(self._window(True)[0], self.options.chunk)

    def extend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, state: State | None) -> tuple[Tensor, State]:
        """The state: landmarks and their values (B,H,G,.), which exist (B,G), keys and values of the open page and the
        one before (B,H,2p,.), which are real (B,2p), positions so far (B,)."""
        B, _, N, _ = q.shape
        c, page, index = self.options.chunk, self._page, torch.arange(2 * self._page + N, device=q.device)
        q, k, v = (x.to(accumulator_precision(x.dtype)) for x in (q, k, v))
        (k, v), real = clear_masked(where.real, k, v), where.reals(B)
        old_k, old_v, old_exists, near_k, near_v, near_real, start = self._checked(state, k, v)
        length = where.lengths(B) + start
        there, back = block_turns(real)
        # A row of 2p + N slots: the first slot is position `base`, and new tokens begin at slot start - base.
        base = ((start // page - 1) * page)[:, None]
        first = start[:, None] - base
        source = torch.where(index < first, index, index - first + 2 * page).clamp(max=len(index) - 1)
        pairs = ((torch.zeros_like(near_k), q), (near_k, k), (near_v, v))
        q, k, v = (
            pick_block_tokens(torch.cat([old, pick_block_tokens(new, there)], dim=2), source) for old, new in pairs
        )
        real = torch.cat([near_real, real.gather(1, there)], dim=1).gather(1, source) & (index < first + N)
        with keep_precision(v.device):
            new_k, new_v, new_exists = self._landmarks(k, v, real, True)
            G, fresh = old_k.shape[2], torch.arange(new_k.shape[2], device=q.device) + base // c  # (B, n): which chunk
            number = torch.cat([self._count(G, q), fresh], dim=1)
            exists = torch.cat([old_exists, new_exists], dim=1)
            known = torch.cat([old_exists, new_exists & (fresh >= (start // c)[:, None])], dim=1)
            far_see = known[:, None] & (number[:, None] < ((base + index) // c)[..., None])  # (B, 2p + N, G + n)
            far_k, far_v = torch.cat([old_k, new_k], dim=2), torch.cat([old_v, new_v], dim=2)
            o = self._join(q, k, v, real, True, (far_k, far_v, far_see))
        o = pick_block_tokens(pick_block_tokens(o, first + index[:N]), back)
        chunks = self._count(int(length.max()) // c, q)  # completed chunks
        at = torch.where(chunks < (start // c)[:, None], chunks, G + chunks - base // c).clamp(max=number.shape[1] - 1)
        ended = exists.gather(1, at) & (chunks < (length // c)[:, None])
        last = ((length // page - 1) * page)[:, None]
        keep = (last - base + index[: 2 * page]).clamp(max=len(index) - 1)
        held = real.gather(1, keep) & (index[: 2 * page] < length[:, None] - last)
        return o, (
            pick_block_tokens(far_k, at),
            pick_block_tokens(far_v, at),
            ended,
            pick_block_tokens(k, keep),
            pick_block_tokens(v, keep),
            held,
            length,
        )

    @staticmethod
    def _count(n: int, like: Tensor) -> Tensor:
        """(B, n): 0, 1, ..., n - 1 in each row."""
        return torch.arange(n, device=like.device).expand(like.shape[0], -1)

    def _checked(self, state: State | None, k: Tensor, v: Tensor) -> State:
        """A state whose parts agree, or the empty one."""
        if state is not None:
            if not state[0].shape[2] == state[1].shape[2] == state[2].shape[1]:
                raise InputError("state holds landmarks, values and flags of different numbers: these must be equal")
            return state
        B, H, p = k.shape[0], k.shape[1], 2 * self._page
        none = torch.zeros(B, p, dtype=torch.bool, device=k.device)
        keys, values = k.new_zeros(B, H, p, k.shape[3]), v.new_zeros(B, H, p, v.shape[3])
        return keys[:, :, :0], values[:, :, :0], none[:, :0], keys, values, none, none.sum(dim=1)

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        H, D, p = self.heads, self.head_dim, 2 * self._page
        return [(B, H, None, D), (B, H, None, E), (B, None), (B, H, p, D), (B, H, p, E), (B, p), (B,)]
