"""Gradients of exponents: dq forward, and dk over the future.

    out_tc = sum_s e^(a_tc + b_sc) (p_t . v_s + x_t y_s)

dq has (a, b) = (q - r - ln den, k), (p, v) = (g, v) and x = -g . o; dk has (k, q - r - ln den), (v, g) and y = -g . o.
Exponents of pairs that see each other are at most 0, except if a state that does not come from keys has z < 1.
"""

import triton
import triton.language as tl
from torch import Tensor

from linnet.ops.memory import Maybe
from linnet.ops.triton import tiles
from linnet.ops.triton.exponential_values import BLOCK, KEYS, WIDTH
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


@triton.jit
def _weights_of_state(  # type: ignore[no-untyped-def]
    sums, a_, p, x_, S, z, m, reads, bh, span, H, i, N, d, D, E, BK: tl.constexpr, PRECISION: tl.constexpr
):
    """Adds what a state gives: e^(a_tc + m_c) (p_t . S_c + x_t z_c), for the tokens that read it."""
    start, of_head, of_span, of_row, of_column = S
    start += bh * of_head + span * of_span
    slope = tl.zeros((i.shape[0], d.shape[0]), tl.float32)
    for k in range(0, E, BK):
        e = k + tl.arange(0, BK)
        inside = (e < E)[:, None] & (d < D)[None, :]
        S_ = tl.load(start + d[None, :] * of_row + e[:, None] * of_column, inside, 0.0)
        slope += tile_product(load_tile_rows(p, bh, H, i, N, e, E), S_, PRECISION)
    start, of_head, of_span, of_row = z
    slope += x_[:, None] * tl.load(start + bh * of_head + span * of_span + d, d < D, 0.0)[None, :]
    start, of_head, of_span, of_row = m
    high = tl.load(start + bh * of_head + span * of_span + d, d < D, FLOOR)
    W = tl.exp(tl.minimum(a_ + high[None, :], 80.0))
    return sums + tl.where(reads[:, None], W * slope, 0.0)


@triton.jit
def _weight_sums(  # type: ignore[no-untyped-def]
    a, b, p, v, out, S, z, m, S_later, z_later, m_later, x, y, a_r, a_less, b_r, b_less, real_a, real_b, run,
    N, D, E, H, SPAN: tl.constexpr, C: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
    EP: tl.constexpr, SIGHT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """C tokens and BD columns of the output: states, then the other keys of their span, then each other, one by one."""
    bh, batch, own, i, span = tile_block(N, H, C, SPAN)
    end = tl.minimum(span * SPAN + SPAN, N)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    a_ = load_tile_exponents(a, a_r, a_less, real_a, bh, H, i, N, d, D)
    x_ = tl.full((C,), 1.0, tl.float32)
    if x is not None:
        x_ = load_tile_numbers(x, bh, i, N)
    sums = tl.zeros((C, BD), tl.float32)
    real_i = i < N
    if real_a is not None:
        real_i &= load_tile_numbers(real_a, batch, i, N) != 0
    reads = real_i
    run_i = i
    if run is not None:
        run_i = load_tile_numbers(run, batch, i, N)
    if S is not None:
        if run is not None:
            reads = real_i & (run_i == load_tile_numbers(run, batch, tl.maximum(span * SPAN - 1, 0), N))
        sums = _weights_of_state(sums, a_, p, x_, S, z, m, reads, bh, span, H, i, N, d, D, E, BK, PRECISION)
    if S_later is not None:
        if run is not None:
            reads = real_i & (run_i == load_tile_numbers(run, batch, tl.minimum(span * SPAN + SPAN, N - 1), N))
        sums = _weights_of_state(
            sums, a_, p, x_, S_later, z_later, m_later, reads, bh, span, H, i, N, d, D, E, BK, PRECISION
        )
    if SIGHT != ALL:
        low = own + C if SIGHT == FUTURE else span * SPAN
        high = own if SIGHT == PAST else end
        for first in range(low, high, BS):
            s = first + tl.arange(0, BS)
            counts, border = keys_outside_tile(s, first, own, high, real_b, run, batch, N, C)
            if run is not None:
                reads = real_i & (run_i == border)
            slope = tl.zeros((C, BS), tl.float32)
            for k in range(0, E, BK):
                e = k + tl.arange(0, BK)
                slope += tile_product(
                    load_tile_rows(p, bh, H, i, N, e, E), tl.trans(load_tile_rows(v, bh, H, s, N, e, E)), PRECISION
                )
            y_ = tl.full((BS,), 1.0, tl.float32)
            if y is not None:
                y_ = load_tile_numbers(y, bh, s, N)
            slope = tl.where(counts[None, :] & reads[:, None], slope + x_[:, None] * y_[None, :], 0.0)
            key = load_tile_exponents(b, b_r, b_less, None, bh, H, s, N, d, D)
            key = tl.where(counts[:, None], key, -float("inf"))
            top = tl.maximum(tl.max(key, 0), FLOOR)
            W = tl.exp(tl.minimum(a_ + top[None, :], 80.0))
            sums += tl.where(reads[:, None], W * tile_product(slope, tl.exp(key - top[None, :]), PRECISION), 0.0)
        e = tl.arange(0, EP)
        p_ = load_tile_rows(p, bh, H, i, N, e, E).to(tl.float32)
        for t in range(own, tl.minimum(own + C, N)):
            see = real_i & tile_sees(i, t, real_b, run, run_i, batch, N, SIGHT)
            key = load_tile_exponent(b, b_r, b_less, bh, H, t, N, d, D)
            one = tl.sum(p_ * load_tile_token(v, bh, H, t, e, E)[None, :], 1)
            if y is not None:
                one += x_ * tl.load(y + bh * N + t)
            else:
                one += x_
            W = tl.exp(tl.minimum(a_ + key[None, :], 80.0))
            sums += tl.where(see[:, None], W * one[:, None], 0.0)
    store_tile_rows(out, sums, bh, H, i, N, d, D)


def sum_exponential_weights(
    out: Tensor, exponents: tuple[Tensor, Tensor], factors: tuple[Tensor, Tensor], seen: Around, run: Maybe,
    less: tuple[Tensor, Tensor], h: Tensor, real: Maybe, of_queries: bool,
) -> None:  # fmt: skip
    """Writes dq, or dk, to `out`; `exponents` are (a, b) and `factors` (p, v)."""
    (B, H, N, D), E = out.shape, factors[0].shape[3]
    BK, BD = min(WIDTH, padded_tile(E)), min(64, padded_tile(D))
    none: tuple[None, None] = (None, None)
    order = (h, None, *less, *none, None, real) if of_queries else (None, h, *none, *less, real, None)
    _weight_sums[(B * H * triton.cdiv(N, BLOCK), triton.cdiv(D, BD))](
        *(tile_view(x) for x in (*exponents, *factors, out)), *seen.views(), *order, run, N, D, E, H, tiles.SPAN, BLOCK,
        KEYS, BK, BD, padded_tile(E), seen.sight, tile_precision(out.dtype), num_warps=4, num_stages=2,
    )  # fmt: skip
