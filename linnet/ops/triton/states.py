"""The states before each span of tokens, for linear and for exponential features: each span's own, then their sum.

S = sum_s b_s w_s^T and z = sum_s y_s b_s over the tokens before the span that are of its run (M8). With exponential
features b holds logarithms, and S and z are sums over e^(b_s - m) with m_c the largest b_sc (M12).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from linnet.ops.triton.tiles import (
    FLOOR, Maybe, load_exponents, load_numbers, load_rows, padded, precision, product, view,
)  # fmt: skip


@triton.jit
def span_states(  # type: ignore[no-untyped-def]
    b, w, y, c, r, less, real, run, S, z, m, N, D, E, H, spans,
    SPAN: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    REVERSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state that one span's tokens give, as far as they are of its last token's run: a tile (BD, BE) of it.

    Tokens count c_s times. Features are exponential where m, their largest, is asked for.
    """
    program = tl.program_id(0).to(tl.int64)
    bh, span = program // spans, (program % spans).to(tl.int32)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    e = tl.program_id(2) * BE + tl.arange(0, BE)
    S_ = tl.zeros((BD, BE), tl.float32)
    z_ = tl.zeros((BD,), tl.float32)
    top = tl.full((BD,), FLOOR, tl.float32)
    end = tl.minimum(span * SPAN + SPAN, N)
    for start in range(span * SPAN, end, C):
        i = start + tl.arange(0, C)
        counts = i < N
        if real is not None:
            counts &= load_numbers(real, bh // H, i, N, REVERSE) != 0
        if run is not None:
            last = load_numbers(run, bh // H, end - 1, N, REVERSE)
            counts &= load_numbers(run, bh // H, i, N, REVERSE) == last
        w_ = load_rows(w, bh, H, i, N, e, E, REVERSE)
        w_ = tl.where(counts[:, None], w_, 0.0).to(w_.dtype)  # what stands in a masked token is never read
        if m is not None:
            b_ = load_exponents(b, r, less, None, bh, H, i, N, d, D, REVERSE)
            b_ = tl.where(counts[:, None], b_, -float("inf"))
            old, top = top, tl.maximum(top, tl.max(b_, 0))
            b_ = tl.exp(b_ - top[None, :])
            S_ *= tl.exp(old - top)[:, None]
            z_ *= tl.exp(old - top)
        else:
            b_ = load_rows(b, bh, H, i, N, d, D, REVERSE)
            b_ = tl.where(counts[:, None], b_, 0.0).to(b_.dtype)
            if c is not None:
                b_ = b_.to(tl.float32) * load_numbers(c, bh, i, N, REVERSE)[:, None]
        S_ += product(tl.trans(b_), w_, PRECISION)
        if z is not None:
            b_ = b_.to(tl.float32)
            if y is not None:
                b_ *= load_numbers(y, bh, i, N, REVERSE)[:, None]
            z_ += tl.sum(b_, 0)
    tl.store(S + (program * D + d[:, None]) * E + e[None, :], S_, (d < D)[:, None] & (e < E)[None, :])
    if tl.program_id(2) == 0:
        if z is not None:
            tl.store(z + program * D + d, z_, d < D)
        if m is not None:
            tl.store(m + program * D + d, top, d < D)


@triton.jit
def carry(  # type: ignore[no-untyped-def]
    S, z, m, before, S0, z0, m0, S1, z1, m1, run, N, D, E, H, spans,
    SPAN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """In place of each span's own state, the one before it (of m, in `before`); then the one after the last."""
    bh = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    e = tl.program_id(2) * BE + tl.arange(0, BE)
    at = d[:, None] * E + e[None, :]
    inside = (d < D)[:, None] & (e < E)[None, :]
    S_ = tl.zeros((BD, BE), tl.float32)
    z_ = tl.zeros((BD,), tl.float32)
    top = tl.full((BD,), FLOOR, tl.float32)
    mine = d < D * (1 - tl.minimum(tl.program_id(2), 1))  # z has no columns: the first programs take care of it
    if S0 is not None:
        S_ = tl.load(S0 + bh * D * E + at, inside, 0.0)
    if z0 is not None:
        z_ = tl.load(z0 + bh * D + d, d < D, 0.0)
    if m0 is not None:
        top = tl.maximum(tl.load(m0 + bh * D + d, d < D, FLOOR), FLOOR)
    for span in range(spans):
        j = bh * spans + span
        new = tl.load(S + j * D * E + at, inside, 0.0)
        tl.store(S + j * D * E + at, S_, inside)
        f = tl.full((BD,), 1.0, tl.float32)
        g = f
        if run is not None:
            earlier = load_numbers(run, bh // H, tl.maximum(span * SPAN - 1, 0), N, REVERSE)
            last = load_numbers(run, bh // H, tl.minimum(span * SPAN + SPAN, N) - 1, N, REVERSE)
            f = tl.where(earlier == last, f, 0.0)
        if m is not None:
            high = tl.load(m + j * D + d, d < D, FLOOR)
            tl.store(before + j * D + d, top, mine)
            old, top = top, tl.maximum(tl.where(f > 0, top, FLOOR), high)
            f *= tl.exp(tl.minimum(old - top, 0.0))  # a state that is dropped may have been larger
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
    """Before each span: S (B,H,spans,D,E), z and m (B,H,spans,D); after the last: S1, z1, m1; z and m where wanted."""

    S: Tensor
    z: Maybe
    m: Maybe
    S1: Tensor
    z1: Maybe
    m1: Maybe

    def whole(self) -> "States":
        """The state after the last token in place of the one before each span."""
        ends = (None if x is None else x.unsqueeze(2) for x in self[3:])
        return States(*ends, *self[3:])  # type: ignore[arg-type]


class Pass(NamedTuple):
    """How a pass goes over the tokens: from the end? without a token itself? which spans and runs are there?"""

    span: int
    run: Maybe
    reverse: bool = False
    strict: bool = False


class Keys(NamedTuple):
    """What is made of the keys: z too? e^b? With factors y and c, and b less (r, ln den)?"""

    normalize: bool
    exponential: bool = False
    y: Maybe = None
    c: Maybe = None
    less: tuple[Maybe, Maybe] = (None, None)


Start = tuple[Maybe, Maybe, Maybe]


def sides(
    b: Tensor, w: Tensor, real: Maybe, by: Pass, causal: bool, start: Start, keys: Keys
) -> list[tuple[Pass, States]]:
    """The passes that one call takes, each with its states: `by`, in which a token sees itself, and perhaps its converse.

    Without segments what is not causal is one state, which every span reads; with them a strict pass comes from behind.
    """
    known = _states(b, w, real, by, start, keys)
    if causal:
        return [(by, known)]
    if by.run is None:
        return [(by, known.whole())]
    back = by._replace(reverse=not by.reverse, strict=True)
    return [(by, known), (back, _states(b, w, real, back, (None, None, None), keys))]


def _states(b: Tensor, w: Tensor, real: Maybe, by: Pass, start: Start, keys: Keys) -> States:
    """The states of keys b and values w, (B,H,N,D) and (B,H,N,E), from an incoming one."""
    (B, H, N, D), E = b.shape, w.shape[3]
    spans = triton.cdiv(N, by.span)

    def room(*shape: int) -> Tensor:
        return torch.empty(B, H, *shape, dtype=torch.float32, device=b.device)

    S, S1 = room(spans, D, E), room(D, E)
    z, z1 = (room(spans, D), room(D)) if keys.normalize else (None, None)
    m, before, m1 = (room(spans, D), room(spans, D), room(D)) if keys.exponential else (None, None, None)
    C, BD, BE = 32 if b.dtype == torch.float32 else 64, min(64, padded(D)), min(64, padded(E))
    tiles = triton.cdiv(D, BD), triton.cdiv(E, BE)
    sizes = N, D, E, H, spans, by.span
    span_states[(B * H * spans, *tiles)](
        view(b), view(w), keys.y, keys.c, *keys.less, real, by.run, S, z, m, *sizes, min(C, by.span), BD, BE,
        by.reverse, precision(w.dtype), num_warps=4, num_stages=2,
    )  # fmt: skip
    carry[(B * H, *tiles)](S, z, m, before, *start, S1, z1, m1, by.run, *sizes, BD, BE, by.reverse, num_warps=4)
    return States(S, z, before, S1, z1, m1)


def of_spans(x: Maybe) -> tuple[Tensor | int, ...] | None:
    """States of spans (B,H,spans,...) as the kernels take them; the one of `States.whole` serves every span."""
    return None if x is None else (x, x.stride(1), 0 if x.shape[2] == 1 else x.stride(2), *x.stride()[3:])
