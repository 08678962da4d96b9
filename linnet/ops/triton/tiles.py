"""Shared by the kernels: loading tiles of tokens, products in float32, and the sizes of tiles.

A view is a pointer with its strides, so tensors may have any strides except in the last axis. Programs of axis 0 are
pairs of a head (one of B * H) and a block of tokens. Optional tensors are None, which the compiler sees.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from linnet.ops.memory import Maybe
from linnet.ops.precision import FLOOR as _FLOOR

FLOOR = tl.constexpr(_FLOOR)
SPAN = 128  # tokens between two states
PAST, FUTURE, BOTH, ALL = (tl.constexpr(sight) for sight in range(4))  # what a token sees; ALL: one state holds it


@triton.jit
def tile_block(N, H, C: tl.constexpr, SPAN: tl.constexpr):  # type: ignore[no-untyped-def]
    """The C tokens of this program: their head (one of B * H), batch, first token, all of them, and span."""
    blocks = tl.cdiv(N, C)
    bh = tl.program_id(0).to(tl.int64) // blocks
    own = (tl.program_id(0) % blocks) * C
    return bh, bh // H, own, own + tl.arange(0, C), own // SPAN


@triton.jit
def load_tile_rows(x, bh, H, i, N, column, width):  # type: ignore[no-untyped-def]
    """Tokens i of a view (B,H,N,width) as a tile, 0 outside."""
    start, of_batch, of_head, of_token = x
    start += (bh // H) * of_batch + (bh % H) * of_head
    inside = (i < N)[:, None] & (column < width)[None, :]
    return tl.load(start + i.to(tl.int64)[:, None] * of_token + column[None, :], inside, 0.0)


@triton.jit
def store_tile_rows(x, tile, bh, H, i, N, column, width):  # type: ignore[no-untyped-def]
    """Write a tile where `load_tile_rows` would read it."""
    start, of_batch, of_head, of_token = x
    start += (bh // H) * of_batch + (bh % H) * of_head
    inside = (i < N)[:, None] & (column < width)[None, :]
    tl.store(start + i.to(tl.int64)[:, None] * of_token + column[None, :], tile.to(start.dtype.element_ty), inside)


@triton.jit
def load_tile_numbers(x, row, i, N):  # type: ignore[no-untyped-def]
    """Numbers of tokens i, or of one token, in a row of x (rows, N), 0 outside."""
    return tl.load(x + row * N + i, i < N, 0)


@triton.jit
def load_tile_token(x, bh, H, t, column, width):  # type: ignore[no-untyped-def]
    """One token of a view (B,H,N,width) in float32, 0 outside."""
    start, of_batch, of_head, of_token = x
    start += (bh // H) * of_batch + (bh % H) * of_head + tl.cast(t, tl.int64) * of_token
    return tl.load(start + column, column < width, 0.0).to(tl.float32)


@triton.jit
def load_tile_exponent(x, r, less, bh, H, t, N, column, width):  # type: ignore[no-untyped-def]
    """`load_tile_exponents` of one token, 0 outside."""
    row = load_tile_token(x, bh, H, t, column, width)
    if r is not None:
        row = row - tl.load(r + bh * N + t) - tl.load(less + bh * N + t)
    return row


@triton.jit
def load_tile_exponents(x, r, less, real, bh, H, i, N, column, width):  # type: ignore[no-untyped-def]
    """Logarithms of features, of queries less r and the logarithm of the denominator; -inf outside and where masked."""
    tile = load_tile_rows(x, bh, H, i, N, column, width).to(tl.float32)
    if r is not None:
        tile -= load_tile_numbers(r, bh, i, N)[:, None]
        tile -= load_tile_numbers(less, bh, i, N)[:, None]
    inside = (i < N)[:, None] & (column < width)[None, :]
    if real is not None:
        inside &= load_tile_numbers(real, bh // H, i, N)[:, None] != 0
    return tl.where(inside, tile, -float("inf"))


@triton.jit
def tile_sees(i, t, real, run, run_i, batch, N, SIGHT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which of the tokens i see token t of their block."""
    see = i < N
    if SIGHT == PAST:
        see &= i >= t
    if SIGHT == FUTURE:
        see &= i <= t
    if real is not None:
        see &= load_tile_numbers(real, batch, t, N) != 0
    if run is not None:
        see &= run_i == load_tile_numbers(run, batch, t, N)
    return see


@triton.jit
def keys_outside_tile(s, first, own, high, real, run, batch, N, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which of the keys s, from `first` on, the block at `own` sees as a whole; and the run that they share with it."""
    counts = (s < high) & ((s < own) | (s >= own + C))
    border = own
    if real is not None:
        counts &= load_tile_numbers(real, batch, s, N) != 0
    if run is not None:  # that of the block's first token, or, for later keys, of its last
        border = load_tile_numbers(run, batch, own if first < own else tl.minimum(own + C, N) - 1, N)
        counts &= load_tile_numbers(run, batch, s, N) == border
    return counts, border


@triton.jit
def tile_product(x, y, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """x @ y, summed in float32; in half precision only if both are, since rounding a sum to half may overflow."""
    if PRECISION != "ieee" and x.dtype == y.dtype:
        return tl.dot(x, y, input_precision=PRECISION)
    return tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision=PRECISION)


@triton.jit
def _row_products(g, o, den, h, N, E, H, C: tl.constexpr, EP: tl.constexpr, EPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """h_t = -g_t . o_t; with `den`, 0 where the normalizer was raised to EPS and so has no gradient."""
    blocks = tl.cdiv(N, C)
    bh = tl.program_id(0).to(tl.int64) // blocks
    i = (tl.program_id(0) % blocks) * C + tl.arange(0, C)
    e = tl.arange(0, EP)
    total = -tl.sum(
        load_tile_rows(g, bh, H, i, N, e, E).to(tl.float32) * load_tile_rows(o, bh, H, i, N, e, E).to(tl.float32), 1
    )
    if den is not None:
        total = tl.where(load_tile_numbers(den, bh, i, N) > EPS, total, 0.0)
    tl.store(h + bh * N + i, total, i < N)


def tile_minus_dots(g: Tensor, o: Tensor, den: Maybe, eps: float) -> Tensor:
    """-g_t . o_t (B,H,N) in float32."""
    (B, H, N, E), C = g.shape, 32
    h = torch.empty(B, H, N, dtype=torch.float32, device=g.device)
    _row_products[(B * H * triton.cdiv(N, C),)](tile_view(g), tile_view(o), den, h, N, E, H, C, padded_tile(E), eps)
    return h


def tiles_interpreted() -> bool:
    """Whether TRITON_INTERPRET was set when Triton was imported: then kernels run on the CPU."""
    return isinstance(_row_products, InterpretedFunction)


def tile_view(x: Tensor) -> tuple[Tensor, int, int, int]:
    """A tensor (B,H,N,width) as the kernels take it."""
    return x, x.stride(0), x.stride(1), x.stride(2)


def padded_tile(width: int) -> int:
    """The power of two that holds a head's width; products need at least 16."""
    return max(16, triton.next_power_of_2(width))


def tile_precision(dtype: torch.dtype) -> str:
    """How float32 numbers are multiplied: exactly, or with 10 bits if inputs have half precision.

    The interpreter multiplies bfloat16 wrongly, so it gets float32.
    """
    return "ieee" if dtype == torch.float32 or tiles_interpreted() else "tf32"
