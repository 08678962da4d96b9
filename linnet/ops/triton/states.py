"""The states before and after each span of tokens, for linear and exponential features.

S = sum_s b_s w_s^T and z = sum_s y_s b_s over the earlier (or the later) tokens of the run that reaches the span (M8).
With exponential features b holds logarithms, and S and z sum e^(b_s - m) with m_c the largest b_sc (M12). One kernel
computes the own state of each span, all at once; a second one adds them up.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from linnet.ops.memory import Maybe
from linnet.ops.triton import tiles
from linnet.ops.triton.tiles import (
    ALL,
    BOTH,
    FLOOR,
    FUTURE,
    PAST,
    load_tile_exponents,
    load_tile_numbers,
    load_tile_rows,
    padded_tile,
    tile_precision,
    tile_product,
    tile_view,
)  # fmt: skip


@triton.jit
def _span_states(  # type: ignore[no-untyped-def]
    b, w, y, c, r, less, real, run, S, z, m, N, D, E, H, spans, SPAN: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
    BE: tl.constexpr, REVERSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state of those tokens of one span that belong to the run leaving it: a tile (BD, BE) of it.

    Tokens count c_s times. Features are exponential if m, their maximum, is requested.
    """
    program = tl.program_id(0).to(tl.int64)
    bh, start = program // spans, (program % spans).to(tl.int32) * SPAN
    end = tl.minimum(start + SPAN, N)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    e = tl.program_id(2) * BE + tl.arange(0, BE)
    S_ = tl.zeros((BD, BE), tl.float32)
    z_ = tl.zeros((BD,), tl.float32)
    top = tl.full((BD,), FLOOR, tl.float32)
    for first in range(start, end, C):
        i = first + tl.arange(0, C)
        counts = i < N
        if real is not None:
            counts &= load_tile_numbers(real, bh // H, i, N) != 0
        if run is not None:
            counts &= load_tile_numbers(run, bh // H, i, N) == load_tile_numbers(
                run, bh // H, start if REVERSE else end - 1, N
            )
        w_ = load_tile_rows(w, bh, H, i, N, e, E)
        w_ = tl.where(counts[:, None], w_, 0.0).to(w_.dtype)  # the content of masked tokens is never read
        if m is not None:
            b_ = load_tile_exponents(b, r, less, None, bh, H, i, N, d, D)
            b_ = tl.where(counts[:, None], b_, -float("inf"))
            old, top = top, tl.maximum(top, tl.max(b_, 0))
            b_ = tl.exp(b_ - top[None, :])
            S_ *= tl.exp(old - top)[:, None]
            z_ *= tl.exp(old - top)
        else:
            b_ = load_tile_rows(b, bh, H, i, N, d, D)
            b_ = tl.where(counts[:, None], b_, 0.0).to(b_.dtype)
            if c is not None:
                b_ = b_.to(tl.float32) * load_tile_numbers(c, bh, i, N)[:, None]
        S_ += tile_product(tl.trans(b_), w_, PRECISION)
        if z is not None:
            b_ = b_.to(tl.float32)
            if y is not None:
                b_ *= load_tile_numbers(y, bh, i, N)[:, None]
            z_ += tl.sum(b_, 0)
    tl.store(S + (program * D + d[:, None]) * E + e[None, :], S_, (d < D)[:, None] & (e < E)[None, :])
    if tl.program_id(2) == 0:
        if z is not None:
            tl.store(z + program * D + d, z_, d < D)
        if m is not None:
            tl.store(m + program * D + d, top, d < D)


@triton.jit
def carry_states(  # type: ignore[no-untyped-def]
    S, z, m, before, S0, z0, m0, S1, z1, m1, run, N, D, E, H, spans, SPAN: tl.constexpr, BD: tl.constexpr,
    BE: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Replaces each span's own state by the one that reaches it (m in `before`), and writes the one after the last."""
    bh = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    e = tl.program_id(2) * BE + tl.arange(0, BE)
    at = d[:, None] * E + e[None, :]
    inside = (d < D)[:, None] & (e < E)[None, :]
    mine = d < D * (1 - tl.minimum(tl.program_id(2), 1))  # z has no columns: the first programs write it
    S_ = tl.zeros((BD, BE), tl.float32)
    z_ = tl.zeros((BD,), tl.float32)
    top = tl.full((BD,), FLOOR, tl.float32)
    if S0 is not None:
        S_ = tl.load(S0 + bh * D * E + at, inside, 0.0)
    if z0 is not None:
        z_ = tl.load(z0 + bh * D + d, d < D, 0.0)
    if m0 is not None:
        top = tl.maximum(tl.load(m0 + bh * D + d, d < D, FLOOR), FLOOR)
    for n in range(spans):
        span = spans - 1 - n if REVERSE else n
        j = bh * spans + span
        new = tl.load(S + j * D * E + at, inside, 0.0)
        tl.store(S + j * D * E + at, S_, inside)
        f = tl.full((BD,), 1.0, tl.float32)
        g = f
        if run is not None:
            start, end = span * SPAN, tl.minimum(span * SPAN + SPAN, N)
            enters = load_tile_numbers(run, bh // H, tl.minimum(end, N - 1) if REVERSE else tl.maximum(start - 1, 0), N)
            leaves = load_tile_numbers(run, bh // H, start if REVERSE else end - 1, N)
            f = tl.where(enters == leaves, f, 0.0)
        if m is not None:
            high = tl.load(m + j * D + d, d < D, FLOOR)
            tl.store(before + j * D + d, top, mine)
            old, top = top, tl.maximum(tl.where(f > 0, top, FLOOR), high)
            f *= tl.exp(tl.minimum(old - top, 0.0))  # a dropped state may have been larger
            g = tl.exp(high - top)
        if z is not None:
            own = tl.load(z + j * D + d, mine, 0.0)
            tl.store(z + j * D + d, z_, mine)
            z_ = z_ * f + own * g
        S_ = S_ * f[:, None] + new * g[:, None]
    tl.store(S1 + bh * D * E + at, S_, inside)
    if z is not None:
        tl.store(z1 + bh * D + d, z_, mine)
    if m is not None:
        tl.store(m1 + bh * D + d, top, mine)


class States(NamedTuple):
    """What reaches each span: S (B,H,spans,D,E), z and m (B,H,spans,D); and what leaves the last: S1, z1, m1."""

    S: Tensor
    z: Maybe
    m: Maybe
    S1: Tensor
    z1: Maybe
    m1: Maybe

    def views(self) -> tuple[Any, Any, Any]:
        """S, z and m as the kernels take them; a single state serves every span."""

        def strides(x: Tensor) -> tuple[Any, ...]:
            return x, x.stride(1), 0 if x.shape[2] == 1 else x.stride(2), *x.stride()[3:]

        S, z, m = (None if x is None else strides(x) for x in self[:3])
        return S, z, m


class Keys(NamedTuple):
    """How keys enter the state: with z or not, exponentiated or not, with factors y and c, and b minus (r, ln den)."""

    normalize: bool
    exponential: bool = False
    y: Maybe = None
    c: Maybe = None
    less: tuple[Maybe, Maybe] = (None, None)


class Around(NamedTuple):
    """What the tokens of a span see besides the span: the states of the past and of the future; one state for ALL."""

    sight: int
    past: States | None
    future: States | None

    def turned(self) -> "Around":
        """The same with keys and values exchanged."""
        past, future = (None if x is None else x._replace(S=x.S.mT) for x in self[1:])
        return Around(self.sight, past, future)

    def views(self) -> list[Any]:
        """S, z and m of the past, then of the future."""
        return [part for x in self[1:] for part in ((None, None, None) if x is None else x.views())]


Start = tuple[Maybe, Maybe, Maybe]


def states_around(
    b: Tensor, w: Tensor, real: Maybe, run: Maybe, causal: bool, reverse: bool, start: Start, keys: Keys
) -> tuple[Around, States]:
    """The states of keys b and values w that tokens see, and the one among them that began as `start`."""
    own = _states(b, w, real, run, reverse, start, keys)
    if not causal and run is None:
        z, m = (None if x is None else x.unsqueeze(2) for x in own[4:])
        return Around(ALL.value, States(own.S1.unsqueeze(2), z, m, *own[3:]), None), own
    if causal:
        return (Around(FUTURE.value, None, own) if reverse else Around(PAST.value, own, None)), own
    other = _states(b, w, real, run, not reverse, (None, None, None), keys)
    return Around(BOTH.value, *((other, own) if reverse else (own, other))), own


def _states(b: Tensor, w: Tensor, real: Maybe, run: Maybe, reverse: bool, start: Start, keys: Keys) -> States:
    """The states of keys b and values w, (B,H,N,D) and (B,H,N,E), from the one that enters the row."""
    (B, H, N, D), E, span = b.shape, w.shape[3], tiles.SPAN
    spans = triton.cdiv(N, span)

    def room(*shape: int) -> Tensor:
        return torch.empty(B, H, *shape, dtype=torch.float32, device=b.device)

    S, S1 = room(spans, D, E), room(D, E)
    z, z1 = (room(spans, D), room(D)) if keys.normalize else (None, None)
    m, before, m1 = (room(spans, D), room(spans, D), room(D)) if keys.exponential else (None, None, None)
    C, BD, BE = 16 if b.dtype == torch.float32 else 32, min(64, padded_tile(D)), min(64, padded_tile(E))
    grid = triton.cdiv(D, BD), triton.cdiv(E, BE)
    sizes = N, D, E, H, spans, span
    _span_states[(B * H * spans, *grid)](
        tile_view(b), tile_view(w), keys.y, keys.c, *keys.less, real, run, S, z, m, *sizes, C, BD, BE, reverse,
        tile_precision(w.dtype), num_warps=4, num_stages=2,
    )  # fmt: skip
    carry_states[(B * H, *grid)](S, z, m, before, *start, S1, z1, m1, run, *sizes, BD, BE, reverse, num_warps=4)
    return States(S, z, before, S1, z1, m1)
