"""Sums of values with exponential weights: o forward, and dv over the future (M11).

    out_t = sum_s sum_c e^(a_tc + b_sc) w_s

o has (a, b, w) = (q, k, v) and is divided by the same sum without w; dv has (k, q - r - ln den, g). Sums are relative
to e^r_t, where r_t is the largest exponent so far; it grows as t sees more keys. The keys of each part are relative to
their maximum m_c, so every weight is e^x with x <= 0, and nothing depends on keys that t does not see.
"""

import triton
import triton.language as tl
from torch import Tensor

from linnet.ops.memory import Maybe
from linnet.ops.triton import tiles
from linnet.ops.triton.states import Around
from linnet.ops.triton.tiles import (
    ALL,
    FLOOR,
    FUTURE,
    PAST,
    keys_outside_tile,
    load_tile_exponent,
    load_tile_exponents,
    load_tile_numbers,
    load_tile_rows,
    load_tile_token,
    padded_tile,
    store_tile_rows,
    tile_block,
    tile_precision,
    tile_product,
    tile_sees,
    tile_view,
)  # fmt: skip

BLOCK = 16  # tokens whose pairs are computed one by one, and the least size of a matrix product
KEYS = 32  # keys per product: twice BLOCK, so that those outside a block are all before it or all after it
WIDTH = 32  # channels per product


@triton.jit
def _values_of_state(  # type: ignore[no-untyped-def]
    sums, den, r, a, a_r, a_less, real_a, S, z, m, reads, bh, span, H, i, N, D, e, E, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds a state: the tokens that read it weigh its channels by e^(a_t + m)."""
    S_start, S_head, S_span, S_row, S_column = S
    S_start += bh * S_head + span * S_span
    z_start, z_head, z_span, z_row = z
    z_start += bh * z_head + span * z_span
    m_start, m_head, m_span, m_row = m
    m_start += bh * m_head + span * m_span
    old = r
    for k in range(0, D, BK):
        d = k + tl.arange(0, BK)
        x = load_tile_exponents(a, a_r, a_less, real_a, bh, H, i, N, d, D) + tl.load(m_start + d, d < D, FLOOR)[None, :]
        r = tl.maximum(r, tl.max(tl.where(reads[:, None], x, FLOOR), 1))
    sums *= tl.exp(old - r)[:, None]
    den *= tl.exp(old - r)
    for k in range(0, D, BK):
        d = k + tl.arange(0, BK)
        x = load_tile_exponents(a, a_r, a_less, real_a, bh, H, i, N, d, D) + tl.load(m_start + d, d < D, FLOOR)[None, :]
        W = tl.exp(tl.where(reads[:, None], x, -float("inf")) - r[:, None])
        inside = (d < D)[:, None] & (e < E)[None, :]
        sums += tile_product(W, tl.load(S_start + d[:, None] * S_row + e[None, :] * S_column, inside, 0.0), PRECISION)
        den += tl.sum(W * tl.load(z_start + d, d < D, 0.0)[None, :], 1)
    return sums, den, r


@triton.jit
def _values_of_keys(  # type: ignore[no-untyped-def]
    sums, den, r, a, a_r, a_less, real_a, b, b_r, b_less, w, reads, counts, s, bh, H, i, N, D, e, E,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds the keys s that count: every token that reads sees all of them."""
    old = r
    for k in range(0, D, BK):
        d = k + tl.arange(0, BK)
        key = load_tile_exponents(b, b_r, b_less, None, bh, H, s, N, d, D)
        m = tl.maximum(tl.max(tl.where(counts[:, None], key, FLOOR), 0), FLOOR)
        x = load_tile_exponents(a, a_r, a_less, real_a, bh, H, i, N, d, D) + m[None, :]
        r = tl.maximum(r, tl.max(tl.where(reads[:, None], x, FLOOR), 1))
    A = tl.zeros((i.shape[0], s.shape[0]), tl.float32)
    for k in range(0, D, BK):
        d = k + tl.arange(0, BK)
        key = load_tile_exponents(b, b_r, b_less, None, bh, H, s, N, d, D)
        key = tl.where(counts[:, None], key, -float("inf"))
        m = tl.maximum(tl.max(key, 0), FLOOR)
        x = load_tile_exponents(a, a_r, a_less, real_a, bh, H, i, N, d, D) + m[None, :]
        W = tl.exp(tl.where(reads[:, None], x, -float("inf")) - r[:, None])
        A += tile_product(W, tl.trans(tl.exp(key - m[None, :])), PRECISION)
    w_ = load_tile_rows(w, bh, H, s, N, e, E)
    w_ = tl.where(counts[:, None], w_, 0.0)  # the content of masked tokens is never read
    f = tl.exp(old - r)
    return sums * f[:, None] + tile_product(A, w_, PRECISION), den * f + tl.sum(A, 1), r


@triton.jit
def _value_sums(  # type: ignore[no-untyped-def]
    a, b, w, out, S, z, m, S_later, z_later, m_later, a_r, a_less, b_r, b_less, real_a, real_b, run, r_out, less_out,
    N, D, E, H, SPAN: tl.constexpr, C: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, DP: tl.constexpr,
    BE: tl.constexpr, SIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """C tokens and BE columns of the output: states, then the other keys of their span, then each other, one by one.

    The result is normalized if r_out and less_out, the logarithm of its denominator, are requested.
    """
    bh, batch, own, i, span = tile_block(N, H, C, SPAN)
    end = tl.minimum(span * SPAN + SPAN, N)
    e = tl.program_id(1) * BE + tl.arange(0, BE)
    sums = tl.zeros((C, BE), tl.float32)
    den = tl.zeros((C,), tl.float32)
    r = tl.full((C,), FLOOR, tl.float32)
    reads = i < N
    run_i = i
    if run is not None:
        run_i = load_tile_numbers(run, batch, i, N)
    if S is not None:
        if run is not None:
            reads = run_i == load_tile_numbers(run, batch, tl.maximum(span * SPAN - 1, 0), N)
        sums, den, r = _values_of_state(
            sums, den, r, a, a_r, a_less, real_a, S, z, m, reads, bh, span, H, i, N, D, e, E, BK, PRECISION
        )
    if S_later is not None:
        if run is not None:
            reads = run_i == load_tile_numbers(run, batch, tl.minimum(span * SPAN + SPAN, N - 1), N)
        sums, den, r = _values_of_state(
            sums, den, r, a, a_r, a_less, real_a, S_later, z_later, m_later, reads, bh, span, H, i, N, D, e, E, BK,
            PRECISION,
        )  # fmt: skip
    if SIGHT != ALL:
        low = own + C if SIGHT == FUTURE else span * SPAN
        high = own if SIGHT == PAST else end
        for first in range(low, high, BS):
            s = first + tl.arange(0, BS)
            counts, border = keys_outside_tile(s, first, own, high, real_b, run, batch, N, C)
            if run is not None:
                reads = run_i == border
            sums, den, r = _values_of_keys(
                sums, den, r, a, a_r, a_less, real_a, b, b_r, b_less, w, reads, counts, s, bh, H, i, N, D, e, E, BK,
                PRECISION,
            )  # fmt: skip
        d = tl.arange(0, DP)
        a_ = load_tile_exponents(a, a_r, a_less, real_a, bh, H, i, N, d, D)
        for t in range(own, tl.minimum(own + C, N)):
            see = tile_sees(i, t, real_b, run, run_i, batch, N, SIGHT)
            key = load_tile_exponent(b, b_r, b_less, bh, H, t, N, d, D)
            w_ = load_tile_token(w, bh, H, t, e, E)
            x = tl.where(see[:, None], a_ + key[None, :], -float("inf"))
            old, r = r, tl.maximum(r, tl.max(x, 1))
            weight = tl.sum(tl.exp(x - r[:, None]), 1)
            f = tl.exp(old - r)
            den = den * f + weight
            sums = sums * f[:, None] + tl.where(see[:, None], weight[:, None] * w_[None, :], 0.0)
    if less_out is not None:
        none = den == 0
        den = tl.where(none, 1.0, den)
        tl.store(r_out + bh * N + i, r, i < N)
        tl.store(less_out + bh * N + i, tl.where(none, float("inf"), tl.log(den)), i < N)
        sums /= den[:, None]  # M11
    else:
        sums *= tl.exp(tl.minimum(r, 80.0))[:, None]
    store_tile_rows(out, sums, bh, H, i, N, e, E)


def sum_exponential_values(
    out: Tensor, a: Tensor, b: Tensor, w: Tensor, seen: Around, run: Maybe, less: tuple[Tensor, Tensor], real: Maybe,
    forward: bool,
) -> None:  # fmt: skip
    """Writes o and its (r, ln den) to `out` and `less`; or, backward, dv, for which `less` is known."""
    (B, H, N, D), E = a.shape, w.shape[3]
    BK, BE = min(WIDTH, padded_tile(D)), min(64, padded_tile(E))
    none: tuple[None, None] = (None, None)
    known, made, masks = (none, less, (None, real)) if forward else (less, none, (real, None))
    _value_sums[(B * H * triton.cdiv(N, BLOCK), triton.cdiv(E, BE))](
        *map(tile_view, (a, b, w, out)), *seen.views(), *none, *known, *masks, run, *made, N, D, E, H,
        tiles.SPAN, BLOCK, KEYS, BK, padded_tile(D), BE, seen.sight, tile_precision(w.dtype), num_warps=4, num_stages=2,
    )  # fmt: skip
