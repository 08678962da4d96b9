"""Attention over pieces of the keys on the CPU kernels: one call forward, one call backward; only inputs are saved."""

import struct
from typing import Any

import torch
from torch import Tensor

from linnet.errors import InputError
from linnet.ops.cpu.arguments import (
    SMALL,
    call_kernel_with_arguments,
    check_kernel_arguments,
    kernel_argument_sizes,
    kernel_argument_view,
)
from linnet.ops.custom_op import CustomOp
from linnet.ops.memory import Maybe, dense_memory, empty_memory_rows, memory_rows
from linnet.ops.pieces import Pieces


def _call(
    name: str, views: tuple[Maybe, ...], real: Maybe, spans: Tensor, band: Maybe, unit: int, widest: int, scale: float
) -> None:
    """Fill in `struct Pieces` and call the kernel."""
    q, k, v = views[:3]
    assert q is not None
    assert k is not None
    assert v is not None
    (B, H, N, D), E, K = q.shape, v.shape[3], k.shape[2]
    units, most = spans.shape[2:4]
    if units * unit < N:
        raise InputError(f"spans has {units} units of {unit} queries: it must cover {N}")
    threads = torch.get_num_threads() if B * H * N * widest * (D + E) > SMALL else 1
    numbers = [number for x in views for number in kernel_argument_view(x)]
    real, band, spans = dense_memory(real), dense_memory(band), spans.contiguous()
    by_row, by_head = (spans.stride(axis) if spans.shape[axis] > 1 else 0 for axis in (0, 1))
    shared = B, H, N, D, E, 0, min(threads, B * H), 1, 1
    (scale_bits,) = struct.unpack("q", struct.pack("d", scale))
    own = (
        K,
        unit,
        most,
        widest,
        spans,
        by_row,
        by_head,
        band,
        scale_bits,
    )
    call_kernel_with_arguments(name, *shared, real, 0, *numbers, *(0,) * 10, *own)


def _check_inputs(q: Tensor, k: Tensor, v: Tensor, real: Maybe, spans: Tensor, band: Maybe, g: Maybe = None) -> None:
    """One-line errors for inputs that do not fit together."""
    B, H, N, D, E = kernel_argument_sizes("piece_attention", q, v)
    K = v.shape[2]
    many = spans.shape[0] if spans.dim() == 5 and spans.shape[0] in (1, B) else B
    heads = spans.shape[1] if spans.dim() == 5 and spans.shape[1] in (1, H) else H
    tokens = {"q": (q, q.shape), "k": (k, (B, H, K, D)), "v": (v, (B, H, K, E)), "g": (g, (B, H, N, E))}
    places = {"spans": (spans, (many, heads, *spans.shape[2:4], 2)), "band": (band, (N, 2))}
    check_kernel_arguments("piece_attention", **tokens, real=(real, (B, K)), **places)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, spans: Tensor, band: Maybe, unit: int, widest: int, scale: float
) -> Tensor:
    """o (B,H,N,E)."""
    _check_inputs(q, k, v, real, spans, band)
    o = _output(q, v)
    views = memory_rows(q), memory_rows(k), memory_rows(v), o, None, None, None, None
    _call("linnet_pieces", views, real, spans, band, unit, widest, scale)
    return o


def _output(q: Tensor, v: Tensor) -> Tensor:
    """An empty o (B,H,N,E) in the memory layout of q."""
    B, H, N, _ = q.shape
    if q.stride(1) < q.stride(2):  # heads side by side, as projections give them
        return v.new_empty(B, N, H, v.shape[3]).transpose(1, 2)
    return v.new_empty(B, H, N, v.shape[3])


def _fake(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, spans: Tensor, band: Maybe, unit: int, widest: int, scale: float
) -> Tensor:
    return _output(q, v)


def _backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Maybe, spans: Tensor, band: Maybe, unit: int, widest: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v."""
    _check_inputs(q, k, v, real, spans, band, g)
    dq, dk, dv = empty_memory_rows(q), empty_memory_rows(k).zero_(), empty_memory_rows(v).zero_()
    views = memory_rows(q), memory_rows(k), memory_rows(v), None, memory_rows(g), dq, dk, dv
    _call("linnet_pieces_backward", views, real, spans, band, unit, widest, scale)
    return dq, dk, dv


def _backward_fake(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Maybe, spans: Tensor, band: Maybe, unit: int, widest: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return empty_memory_rows(q), empty_memory_rows(k), empty_memory_rows(v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.unit, ctx.widest, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, g: Tensor) -> tuple[Maybe, ...]:
    slopes = _cpu_backward(g, *ctx.saved_tensors, ctx.unit, ctx.widest, ctx.scale)
    return *slopes, None, None, None, None, None, None


_cpu_backward = CustomOp("cpu_pieces_backward", _backward, _backward_fake)
_pieces = CustomOp("cpu_pieces", _forward, _fake, (_save, _gradients))


def attend_pieces_cpu(q: Tensor, k: Tensor, v: Tensor, real: Maybe, pieces: Pieces, scale: float) -> Tensor:
    """`piece_attention` on the kernels."""
    o: Tensor = _pieces(q, k, v, real, pieces.spans, pieces.band, pieces.unit, pieces.widest, scale)
    return o
