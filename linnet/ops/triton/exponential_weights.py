"""Gradients of exponents: dq forward, and dk from the end.

    out_tc = sum_s e^(a_tc + b_sc) (p_t . v_s + x_t y_s)

dq has (a, b) = (q - r - ln den, k), (p, v) = (g, v) and x = -g . o; dk has (k, q - r - ln den), (v, g) and y = -g . o.
Exponents of pairs that see each other are at most 0, but where a state that no keys gave has z < 1.
"""

import triton
import triton.language as tl
import torch
from torch import Tensor

from linnet.ops.triton.exponential_values import STEP
from linnet.ops.triton.states import Pass, States, of_spans
from linnet.ops.triton.tiles import (
    FLOOR, Maybe, load_exponents, load_numbers, load_rows, padded, precision, product, store_rows, view,
)  # fmt: skip


@triton.jit
def walk_weights(  # type: ignore[no-untyped-def]
    a, b, p, v, out, S, z, m, x, y, a_r, a_less, b_r, b_less, real_a, real_b, run, raw, N, D, E, H, spans,
    SPAN: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, EP: tl.constexpr, REVERSE: tl.constexpr,
    STRICT: tl.constexpr, FULL: tl.constexpr, PART: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One span of tokens, C at a time, and BD columns of the output; the state, turned to (EP, BD), stays in registers.

    With FULL the state is that of all tokens. PART 1 leaves its sums in `raw`, and PART 2 adds them to its own.
    """
    program = tl.program_id(0).to(tl.int64)
    bh, span = program // spans, (program % spans).to(tl.int32)
    batch = bh // H
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    e = tl.arange(0, EP)
    start, of_head, of_span, of_row, of_column = S
    start += bh * of_head + span * of_span
    inside = (e < E)[:, None] & (d < D)[None, :]
    S_ = tl.load(start + d[None, :] * of_row + e[:, None] * of_column, inside, 0.0)
    start, of_head, of_span, of_row = z
    z_ = tl.load(start + bh * of_head + span * of_span + d, d < D, 0.0)
    start, of_head, of_span, of_row = m
    m_ = tl.load(start + bh * of_head + span * of_span + d, d < D, FLOOR)
    b_start, of_batch, of_head, b_token = b
    b_start += batch * of_batch + (bh % H) * of_head + d
    v_start, of_batch, of_head, v_token = v
    v_start += batch * of_batch + (bh % H) * of_head + e
    for first in range(span * SPAN, tl.minimum(span * SPAN + SPAN, N), C):
        i = first + tl.arange(0, C)
        a_ = load_exponents(a, a_r, a_less, real_a, bh, H, i, N, d, D, REVERSE)
        p_ = load_rows(p, bh, H, i, N, e, E, REVERSE)
        if real_a is not None:
            p_ = tl.where((load_numbers(real_a, batch, i, N, REVERSE) != 0)[:, None], p_, 0.0).to(p_.dtype)
        x_ = tl.full((C,), 1.0, tl.float32)
        if x is not None:
            x_ = load_numbers(x, bh, i, N, REVERSE)
        W = tl.exp(tl.minimum(a_ + m_[None, :], 80.0))
        if run is not None:
            run_i = load_numbers(run, batch, i, N, REVERSE)
            before = load_numbers(run, batch, tl.maximum(first - 1, 0), N, REVERSE)
            last = load_numbers(run, batch, tl.minimum(first + C, N) - 1, N, REVERSE)
            W = tl.where((run_i == before)[:, None], W, 0.0)
        sums = W * (product(p_, S_, PRECISION) + x_[:, None] * z_[None, :])
        if not FULL:
            p_ = p_.to(tl.float32)
            for s in range(first, tl.minimum(first + C, N)):
                at = tl.cast(N - 1 - s if REVERSE else s, tl.int64)
                see = i > s if STRICT else i >= s
                if real_b is not None:
                    see &= tl.load(real_b + batch * N + at) != 0
                if run is not None:
                    see &= run_i == tl.load(run + batch * N + at)
                b_ = tl.load(b_start + at * b_token, d < D, 0.0).to(tl.float32)
                if b_r is not None:
                    b_ = b_ - tl.load(b_r + bh * N + at) - tl.load(b_less + bh * N + at)
                v_ = tl.load(v_start + at * v_token, e < E, 0.0).to(tl.float32)
                y_ = 1.0
                if y is not None:
                    y_ = tl.load(y + bh * N + at)
                slope = tl.sum(p_ * v_[None, :], 1) + x_ * y_
                W = tl.exp(tl.minimum(a_ + b_[None, :], 80.0))
                sums += tl.where(see[:, None], W * slope[:, None], 0.0)
            counts = i < N
            if real_b is not None:
                counts &= load_numbers(real_b, batch, i, N, REVERSE) != 0
            keep = tl.full((BD,), 1.0, tl.float32)
            if run is not None:
                counts &= run_i == last
                keep = tl.where(before == last, keep, 0.0)
            k = load_exponents(b, b_r, b_less, None, bh, H, i, N, d, D, REVERSE)
            k = tl.where(counts[:, None], k, -float("inf"))
            w = load_rows(v, bh, H, i, N, e, E, REVERSE)
            w = tl.where(counts[:, None], w, 0.0)
            high = tl.maximum(tl.where(keep > 0, m_, FLOOR), tl.max(k, 0))
            keep *= tl.exp(tl.minimum(m_ - high, 0.0))
            k = tl.exp(k - high[None, :])
            S_ = S_ * keep[None, :] + product(tl.trans(w), k, PRECISION)  # M12, turned
            if y is not None:
                k *= load_numbers(y, bh, i, N, REVERSE)[:, None]
            z_ = z_ * keep + tl.sum(k, 0)
            m_ = high
        if PART == 2:
            sums += load_rows(raw, bh, H, i, N, d, D, REVERSE)
        if PART == 1:
            store_rows(raw, sums, bh, H, i, N, d, D, REVERSE)
        else:
            store_rows(out, sums, bh, H, i, N, d, D, REVERSE)


def sum_weights(
    out: Tensor, exponents: tuple[Tensor, Tensor], factors: tuple[Tensor, Tensor], sides: list[tuple[Pass, States]],
    full: bool, less: tuple[Tensor, Tensor], h: Tensor, real: Maybe, of_queries: bool,
) -> None:  # fmt: skip
    """Writes dq, or dk, to `out`; `exponents` are (a, b) and `factors` (p, v)."""
    (B, H, N, D), E = out.shape, factors[0].shape[3]
    EP = padded(E)
    BD = min(padded(D), 64 if EP <= 128 else 32)
    raw = view(torch.empty(out.shape, dtype=torch.float32, device=out.device)) if len(sides) == 2 else None
    none: tuple[None, None] = (None, None)
    order = (h, None, *less, *none, None, real) if of_queries else (None, h, *none, *less, real, None)
    for part, (by, state) in enumerate(sides, 1):
        spans = triton.cdiv(N, by.span)
        walk_weights[(B * H * spans, triton.cdiv(D, BD))](
            *(view(x) for x in (*exponents, *factors, out)), *(of_spans(x) for x in state[:3]), *order, by.run, raw,
            N, D, E, H, spans, by.span, STEP, BD, EP, by.reverse, by.strict, full, part if raw is not None else 0,
            precision(out.dtype), num_warps=4, num_stages=2,
        )  # fmt: skip
