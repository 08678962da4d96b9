"""Linear attention as one kernel that serves forward and backward: o, dq, dk and dv are the same sum (M1, M9).

    out_t = sum_s (a_t . b_s + x_t y_s) c_s w_s

over the tokens s that t sees. o has (a, b, w) = (q, k, v), dq has (g, v, k); from the end, dv has (k, q, g) and dk
(v, g, q). Where normalized, x and y carry -g . o, and c and `gain` the inverse of the normalizer.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from linnet.ops.precision import EPS
from linnet.ops.triton.states import Pass, States, of_spans
from linnet.ops.triton.tiles import (
    Maybe, load_numbers, load_rows, padded, precision, product, store_numbers,
    store_rows, view,
)  # fmt: skip


@triton.jit
def walk(  # type: ignore[no-untyped-def]
    a, b, w, out, S, z_in, z_out, x, y, c, gain, den, raw, raw_den, real_keys, real_out, run, N, D, E, H, spans,
    SPAN: tl.constexpr, C: tl.constexpr, DP: tl.constexpr, BE: tl.constexpr, REVERSE: tl.constexpr,
    STRICT: tl.constexpr, FULL: tl.constexpr, PART: tl.constexpr, PRECISION: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """One span of tokens, chunk by chunk, and BE columns of the output; the state S (DP, BE) stays in registers.

    With FULL the state is that of all tokens. z_in, the sum of keys, gives the normalizer `den`; z_out, the sum of
    y_s c_s w_s, goes with x. PART 1 leaves its sums in `raw` and `raw_den`, and PART 2 adds them to its own.
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
    if z_in is not None:
        start, of_head, of_span, of_row = z_in
        zd = tl.load(start + bh * of_head + span * of_span + d, d < D, 0.0)
    if z_out is not None:
        start, of_head, of_span, of_row = z_out
        ze = tl.load(start + bh * of_head + span * of_span + e, e < E, 0.0)
    for first in range(span * SPAN, tl.minimum(span * SPAN + SPAN, N), C):
        i = first + tl.arange(0, C)
        a_ = load_rows(a, bh, H, i, N, d, D, REVERSE)
        old = a_  # what reads the state
        if run is not None:
            r = load_numbers(run, batch, i, N, REVERSE)
            before = load_numbers(run, batch, tl.maximum(first - 1, 0), N, REVERSE)
            last = load_numbers(run, batch, tl.minimum(first + C, N) - 1, N, REVERSE)
            old = tl.where((r == before)[:, None], a_, 0.0).to(a_.dtype)
        sums = product(old, S_, PRECISION)
        if z_in is not None:
            total = tl.sum(old.to(tl.float32) * zd[None, :], 1)
        if x is not None or y is not None:
            x_ = tl.full((C,), 1.0, tl.float32)
            if x is not None:
                x_ = load_numbers(x, bh, i, N, REVERSE)
            reads = x_
            if run is not None:
                reads = tl.where(r == before, x_, 0.0)
            sums += reads[:, None] * ze[None, :]
        if not FULL:
            b_ = load_rows(b, bh, H, i, N, d, D, REVERSE)
            w_ = load_rows(w, bh, H, i, N, e, E, REVERSE)
            if real_keys is not None:
                real = (load_numbers(real_keys, batch, i, N, REVERSE) != 0)[:, None]
                b_ = tl.where(real, b_, 0.0).to(b_.dtype)
                w_ = tl.where(real, w_, 0.0).to(w_.dtype)
            A = product(a_, tl.trans(b_), PRECISION)
            weight = tl.full((C,), 1.0, tl.float32)
            if c is not None:
                weight = load_numbers(c, bh, i, N, REVERSE)
            y_ = tl.full((C,), 1.0, tl.float32)
            if y is not None:
                y_ = load_numbers(y, bh, i, N, REVERSE)
            if x is not None or y is not None:
                A += x_[:, None] * y_[None, :]
            if c is not None:
                A *= weight[None, :]
            see = i[None, :] < i[:, None] if STRICT else i[None, :] <= i[:, None]
            if run is not None:
                see &= r[:, None] == r[None, :]
            A = tl.where(see, A, 0.0)
            sums += product(A, w_, PRECISION)  # M7
            if z_in is not None:
                total += tl.sum(A, 1)
            if run is not None:
                keep = (before == last).to(tl.float32)
                S_ *= keep
                weight = tl.where(r == last, weight, 0.0)
                b_ = tl.where((r == last)[:, None], b_, 0.0).to(b_.dtype)
                if z_in is not None:
                    zd *= keep
                if z_out is not None:
                    ze *= keep
            if z_in is not None:
                zd += tl.sum(b_.to(tl.float32), 0)
            if z_out is not None:
                ze += tl.sum(w_.to(tl.float32) * (weight * y_)[:, None], 0)
            if c is not None:
                b_ = b_.to(tl.float32) * weight[:, None]
            S_ += product(tl.trans(b_), w_, PRECISION)  # M8
        if PART == 2:
            sums += load_rows(raw, bh, H, i, N, e, E, REVERSE)
        if z_in is not None:
            if PART == 2:
                total += load_numbers(raw_den, bh, i, N, REVERSE)
            if PART == 1:
                store_numbers(raw_den, total, bh, i, N, REVERSE)
            else:
                total = tl.maximum(total, EPS)
                store_numbers(den, total, bh, i, N, REVERSE)
                sums /= total[:, None]
        if gain is not None and PART != 1:
            sums *= load_numbers(gain, bh, i, N, REVERSE)[:, None]
        if real_out is not None:
            sums = tl.where((load_numbers(real_out, batch, i, N, REVERSE) != 0)[:, None], sums, 0.0)
        if PART == 1:
            store_rows(raw, sums, bh, H, i, N, e, E, REVERSE)
        else:
            store_rows(out, sums, bh, H, i, N, e, E, REVERSE)


class Extras(NamedTuple):
    """What a sum has besides a, b and w; each (B,H,N), masks (B,N)."""

    x: Maybe = None
    y: Maybe = None
    c: Maybe = None
    gain: Maybe = None
    den: Maybe = None
    real_keys: Maybe = None
    real_out: Maybe = None


def config(dtype: torch.dtype, D: int, E: int) -> tuple[int, int, int, int, int]:
    """Tokens of a chunk, padded width of a and b, columns of a program, warps and stages.

    Chosen so that sm80 and sm90 compile without spilled registers; no GPU has been timed.
    """
    DP = padded(D)
    C = 32 if dtype == torch.float32 or DP > 128 else 64
    BE = min(padded(E), 64 if DP <= 128 else 32)
    return C, DP, BE, 8 if DP * BE > 4096 or dtype == torch.float32 else 4, 2


def attend(
    out: Tensor, a: Tensor, b: Tensor, w: Tensor, sides: list[tuple[Pass, States]], full: bool, more: Extras
) -> None:
    """Writes to `out` what each token sees: by one pass, or by one over the past and one over the future.

    Widths D and E are a's and w's, and so are those of the states; their z belongs to D where `den` is wanted, else to E.
    """
    (B, H, N, D), E = a.shape, w.shape[3]
    C, DP, BE, warps, stages = config(a.dtype, D, E)
    raw = raw_den = None
    if len(sides) == 2:
        raw = view(torch.empty(B, H, N, E, dtype=torch.float32, device=w.device))
        raw_den = None if more.den is None else torch.empty_like(more.den)
    for part, (by, state) in enumerate(sides, 1):
        z, spans = of_spans(state.z), triton.cdiv(N, by.span)
        z_in = z if more.den is not None else None
        z_out = z if more.x is not None or more.y is not None else None
        walk[(B * H * spans, triton.cdiv(E, BE))](
            view(a), view(b), view(w), view(out), of_spans(state.S), z_in, z_out, more.x, more.y, more.c, more.gain,
            more.den, raw, raw_den, more.real_keys, more.real_out, by.run, N, D, E, H, spans, by.span, min(C, by.span),
            DP, BE, by.reverse, by.strict, full, part if raw is not None else 0, precision(a.dtype), EPS,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
