"""Linear attention as one kernel that serves forward and backward: o, dq, dk and dv are the same sum (M1, M9).

    out_t = sum_s (a_t . b_s + x_t y_s) c_s w_s

over the tokens s that t sees. o has (a, b, w) = (q, k, v), dq has (g, v, k); over the future, dv has (k, q, g) and dk
(v, g, q). Where normalized, x and y carry -g . o, and c and `gain` the inverse of the normalizer.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from linnet.ops.memory import Maybe
from linnet.ops.precision import EPS
from linnet.ops.triton import tiles
from linnet.ops.triton.states import Around
from linnet.ops.triton.tiles import (
    ALL,
    FUTURE,
    PAST,
    load_tile_numbers,
    load_tile_rows,
    padded_tile,
    store_tile_rows,
    tile_block,
    tile_precision,
    tile_product,
    tile_view,
)  # fmt: skip


@triton.jit
def _from_state(  # type: ignore[no-untyped-def]
    sums, total, a, S, z, x_, with_a, reads, bh, span, H, i, N, D, e, E, BK: tl.constexpr, PRECISION: tl.constexpr
):
    """Adds a_t S to `sums` for the tokens that read this state; z goes with a, to `total`, or with x, to `sums`."""
    start, of_head, of_span, of_row, of_column = S
    start += bh * of_head + span * of_span
    for k in range(0, D, BK):
        d = k + tl.arange(0, BK)
        a_ = load_tile_rows(a, bh, H, i, N, d, D)
        a_ = tl.where(reads[:, None], a_, 0.0).to(a_.dtype)
        inside = (d < D)[:, None] & (e < E)[None, :]
        S_ = tl.load(start + d[:, None] * of_row + e[None, :] * of_column, inside, 0.0)
        sums += tile_product(a_, S_, PRECISION)
        if with_a is not None:
            z_start, z_head, z_span, z_row = z
            z_ = tl.load(z_start + bh * z_head + span * z_span + d, d < D, 0.0)
            total += tl.sum(a_.to(tl.float32) * z_[None, :], 1)
    if x_ is not None:
        z_start, z_head, z_span, z_row = z
        z_ = tl.load(z_start + bh * z_head + span * z_span + e, e < E, 0.0)
        sums += tl.where(reads, x_, 0.0)[:, None] * z_[None, :]
    return sums, total


@triton.jit
def _linear_sums(  # type: ignore[no-untyped-def]
    a, b, w, out, S, z, m, S_later, z_later, m_later, x, y, c, gain, den, real_keys, real_out, run, N, D, E, H,
    SPAN: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BE: tl.constexpr, SIGHT: tl.constexpr,
    PRECISION: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """C tokens and BE columns of the output: what they see of their span directly, and the rest by states.

    The z of a state goes with a and gives the normalizer if `den` is requested; otherwise it goes with x (or 1).
    """
    bh, batch, own, i, span = tile_block(N, H, C, SPAN)
    e = tl.program_id(1) * BE + tl.arange(0, BE)
    sums = tl.zeros((C, BE), tl.float32)
    total = tl.zeros((C,), tl.float32)
    reads = i < N
    x_ = tl.full((C,), 1.0, tl.float32)
    if x is not None:
        x_ = load_tile_numbers(x, bh, i, N)
    if run is not None:
        run_i = load_tile_numbers(run, batch, i, N)
    x_z = x_ if x is not None or y is not None else None
    if S is not None:
        if run is not None:
            reads = run_i == load_tile_numbers(run, batch, tl.maximum(span * SPAN - 1, 0), N)
        sums, total = _from_state(sums, total, a, S, z, x_z, den, reads, bh, span, H, i, N, D, e, E, BK, PRECISION)
    if S_later is not None:
        if run is not None:
            reads = run_i == load_tile_numbers(run, batch, tl.minimum(span * SPAN + SPAN, N - 1), N)
        sums, total = _from_state(
            sums, total, a, S_later, z_later, x_z, den, reads, bh, span, H, i, N, D, e, E, BK, PRECISION
        )
    if SIGHT != ALL:
        low = own if SIGHT == FUTURE else span * SPAN
        high = own + C if SIGHT == PAST else span * SPAN + SPAN
        for first in range(low, tl.minimum(high, N), C):
            s = first + tl.arange(0, C)
            A = tl.zeros((C, C), tl.float32)
            for k in range(0, D, BK):
                d = k + tl.arange(0, BK)
                a_, b_ = load_tile_rows(a, bh, H, i, N, d, D), load_tile_rows(b, bh, H, s, N, d, D)
                A += tile_product(a_, tl.trans(b_), PRECISION)
            if y is not None:
                A += x_[:, None] * load_tile_numbers(y, bh, s, N)[None, :]
            elif x is not None:
                A += x_[:, None]
            if c is not None:
                A *= load_tile_numbers(c, bh, s, N)[None, :]
            real = s < N
            if real_keys is not None:
                real &= load_tile_numbers(real_keys, batch, s, N) != 0
            see = real[None, :]
            if SIGHT == PAST:
                see &= s[None, :] <= i[:, None]
            if SIGHT == FUTURE:
                see &= s[None, :] >= i[:, None]
            if run is not None:
                see &= run_i[:, None] == load_tile_numbers(run, batch, s, N)[None, :]
            A = tl.where(see, A, 0.0)
            w_ = load_tile_rows(w, bh, H, s, N, e, E)
            w_ = tl.where(real[:, None], w_, 0.0).to(w_.dtype)  # the content of masked tokens is never read
            sums += tile_product(A, w_, PRECISION)  # M7
            total += tl.sum(A, 1)
    if den is not None:
        total = tl.maximum(total, EPS)
        tl.store(den + bh * N + i, total, i < N)
        sums /= total[:, None]
    if gain is not None:
        sums *= load_tile_numbers(gain, bh, i, N)[:, None]
    if real_out is not None:
        sums = tl.where((load_tile_numbers(real_out, batch, i, N) != 0)[:, None], sums, 0.0)
    store_tile_rows(out, sums, bh, H, i, N, e, E)


class Extras(NamedTuple):
    """Optional parts of a sum besides a, b and w: numbers per token (B,H,N), and masks (B,N) of keys and results."""

    x: Maybe = None
    y: Maybe = None
    c: Maybe = None
    gain: Maybe = None
    den: Maybe = None
    real_keys: Maybe = None
    real_out: Maybe = None


def linear_kernel_sizes(dtype: torch.dtype, D: int, E: int) -> tuple[int, int, int, int]:
    """Tokens per block, columns of a and b that are multiplied at once, columns per program, and warps.

    Chosen so that no registers are spilled if D and E are 64 or 128; nothing has been timed on a GPU.
    """
    if dtype == torch.float32:
        return 32, 16, min(64, padded_tile(E)), 4
    return 64, min(64, padded_tile(D)), min(64, padded_tile(E)), 4


def linear_kernel_sum(out: Tensor, a: Tensor, b: Tensor, w: Tensor, seen: Around, run: Maybe, more: Extras) -> None:
    """Writes the sum to `out`; a and b have width D, w and `out` width E, and the states D and E."""
    (B, H, N, D), E = a.shape, w.shape[3]
    C, BK, BE, warps = linear_kernel_sizes(a.dtype, D, E)
    C = min(C, tiles.SPAN)
    _linear_sums[(B * H * triton.cdiv(N, C), triton.cdiv(E, BE))](
        *map(tile_view, (a, b, w, out)), *seen.views(), *more, run, N, D, E, H, tiles.SPAN, C, BK, BE,
        seen.sight, tile_precision(a.dtype), EPS, num_warps=warps, num_stages=2,
    )  # fmt: skip
