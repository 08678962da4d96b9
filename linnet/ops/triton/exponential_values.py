"""Sums of values with exponential weights: o forward, and dv from the end (M11).

    out_t = sum_s sum_c e^(a_tc + b_sc) w_s

o has (a, b, w) = (q, k, v) and is divided by the same sum without w; dv has (k, q - r - ln den, g). Sums are relative to
e^r_t, where r_t is the largest exponent so far, and grows as keys come: so every weight is e^x with x <= 0, and
nothing depends on a later key.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linnet.ops.triton.states import Pass, States, of_spans
from linnet.ops.triton.tiles import (
    FLOOR, Maybe, load_exponents, load_numbers, load_rows, padded, precision, product, store_numbers, store_rows, view,
)  # fmt: skip

STEP = 16  # tokens whose pairs are taken one by one, and the least that a product of matrices takes


@triton.jit
def walk_values(  # type: ignore[no-untyped-def]
    a, b, w, out, S, z, m, a_r, a_less, b_r, b_less, real_a, real_b, run, r_out, less_out, raw, raw_den, raw_r,
    N, D, E, H, spans, SPAN: tl.constexpr, C: tl.constexpr, DP: tl.constexpr, BE: tl.constexpr,
    REVERSE: tl.constexpr, STRICT: tl.constexpr, FULL: tl.constexpr, PART: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One span of tokens, C at a time, and BE columns of the output; the state (S, z, m) stays in registers.

    Normalized where less_out is asked for. With FULL the state is that of all tokens. PART 1 leaves its sums in `raw`,
    `raw_den` and `raw_r`, and PART 2 goes on from there.
    """
    program = tl.program_id(0).to(tl.int64)
    bh, span = program // spans, (program % spans).to(tl.int32)
    batch = bh // H
    d = tl.arange(0, DP)
    e = tl.program_id(1) * BE + tl.arange(0, BE)
    start, of_head, of_span, of_row, of_column = S
    start += bh * of_head + span * of_span
    inside = (d < D)[:, None] & (e < E)[None, :]
    S_ = tl.load(start + d[:, None] * of_row + e[None, :] * of_column, inside, 0.0)
    start, of_head, of_span, of_row = z
    z_ = tl.load(start + bh * of_head + span * of_span + d, d < D, 0.0)
    start, of_head, of_span, of_row = m
    m_ = tl.load(start + bh * of_head + span * of_span + d, d < D, FLOOR)
    b_start, of_batch, of_head, b_token = b
    b_start += batch * of_batch + (bh % H) * of_head + d
    w_start, of_batch, of_head, w_token = w
    w_start += batch * of_batch + (bh % H) * of_head + e
    for first in range(span * SPAN, tl.minimum(span * SPAN + SPAN, N), C):
        i = first + tl.arange(0, C)
        a_ = load_exponents(a, a_r, a_less, real_a, bh, H, i, N, d, D, REVERSE)
        x = a_ + m_[None, :]
        if run is not None:
            run_i = load_numbers(run, batch, i, N, REVERSE)
            before = load_numbers(run, batch, tl.maximum(first - 1, 0), N, REVERSE)
            last = load_numbers(run, batch, tl.minimum(first + C, N) - 1, N, REVERSE)
            x = tl.where((run_i == before)[:, None], x, -float("inf"))
        r = tl.maximum(tl.max(x, 1), FLOOR)
        if PART == 2:
            r_ = load_numbers(raw_r, bh, i, N, REVERSE)
            r = tl.maximum(r, r_)
        W = tl.exp(x - r[:, None])
        sums = product(W, S_, PRECISION)
        den = tl.sum(W * z_[None, :], 1)
        if PART == 2:
            f = tl.exp(r_ - r)
            sums += load_rows(raw, bh, H, i, N, e, E, REVERSE) * f[:, None]
            den += load_numbers(raw_den, bh, i, N, REVERSE) * f
        if not FULL:
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
                w_ = tl.load(w_start + at * w_token, e < E, 0.0).to(tl.float32)
                x = tl.where(see[:, None], a_ + b_[None, :], -float("inf"))
                old, r = r, tl.maximum(r, tl.max(x, 1))
                f = tl.exp(old - r)
                weight = tl.sum(tl.exp(x - r[:, None]), 1)
                den = den * f + weight
                sums = sums * f[:, None] + tl.where(see[:, None], weight[:, None] * w_[None, :], 0.0)
            counts = i < N
            if real_b is not None:
                counts &= load_numbers(real_b, batch, i, N, REVERSE) != 0
            keep = tl.full((DP,), 1.0, tl.float32)
            if run is not None:
                counts &= run_i == last
                keep = tl.where(before == last, keep, 0.0)
            k = load_exponents(b, b_r, b_less, None, bh, H, i, N, d, D, REVERSE)
            k = tl.where(counts[:, None], k, -float("inf"))
            v = load_rows(w, bh, H, i, N, e, E, REVERSE)
            v = tl.where(counts[:, None], v, 0.0)
            high = tl.maximum(tl.where(keep > 0, m_, FLOOR), tl.max(k, 0))
            keep *= tl.exp(tl.minimum(m_ - high, 0.0))
            k = tl.exp(k - high[None, :])
            S_ = S_ * keep[:, None] + product(tl.trans(k), v, PRECISION)  # M12
            z_ = z_ * keep + tl.sum(k, 0)
            m_ = high
        if PART == 1:
            store_rows(raw, sums, bh, H, i, N, e, E, REVERSE)
            store_numbers(raw_den, den, bh, i, N, REVERSE)
            store_numbers(raw_r, r, bh, i, N, REVERSE)
        elif less_out is not None:
            none = den == 0
            store_numbers(r_out, r, bh, i, N, REVERSE)
            den = tl.where(none, 1.0, den)
            store_numbers(less_out, tl.where(none, float("inf"), tl.log(den)), bh, i, N, REVERSE)
            store_rows(out, sums / den[:, None], bh, H, i, N, e, E, REVERSE)  # M11
        else:
            store_rows(out, sums * tl.exp(tl.minimum(r, 80.0))[:, None], bh, H, i, N, e, E, REVERSE)


def sum_values(
    out: Tensor, a: Tensor, b: Tensor, w: Tensor, sides: list[tuple[Pass, States]], full: bool,
    less: tuple[Tensor, Tensor], real: Maybe, forward: bool,
) -> None:  # fmt: skip
    """Writes o and its (r, ln den) to `out` and `less`; or, backward, dv, for which `less` is known."""
    (B, H, N, D), E = a.shape, w.shape[3]
    DP = padded(D)
    BE = min(padded(E), 64 if DP <= 128 else 32)
    raw: tuple[object, ...] = (None, None, None)
    if len(sides) == 2:
        sums, den, r = (torch.empty(B, H, N, width, dtype=torch.float32, device=w.device) for width in (E, 1, 1))
        raw = view(sums), den, r
    known, masks = ((None, None), (None, real)) if forward else (less, (real, None))
    for part, (by, state) in enumerate(sides, 1):
        spans = triton.cdiv(N, by.span)
        walk_values[(B * H * spans, triton.cdiv(E, BE))](
            view(a), view(b), view(w), view(out), *(of_spans(x) for x in state[:3]), None, None, *known, *masks,
            by.run, *(less if forward else (None, None)), *raw, N, D, E, H, spans, by.span, STEP, DP, BE, by.reverse,
            by.strict, full, part if len(sides) == 2 else 0, precision(w.dtype), num_warps=4, num_stages=2,
        )  # fmt: skip
