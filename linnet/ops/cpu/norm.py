"""SRMS on the CPU kernels: it saves its output, which the next layer keeps anyway, instead of its input."""

import struct
from typing import Any

import torch
from torch import Tensor

from linnet.ops.cpu.arguments import (
    SMALL,
    call_kernel_with_arguments,
    check_kernel_arguments,
    kernel_argument_view,
)
from linnet.ops.custom_op import CustomOp
from linnet.ops.memory import Maybe, empty_memory_rows, memory_rows


def _call(name: str, rms: Tensor, eps: float, *views: Maybe) -> None:
    """Fill in `struct Norm` and call the kernel."""
    B, H, N, E = next(x.shape for x in views if x is not None)
    threads = torch.get_num_threads() if B * H * N * E > SMALL else 1
    (bits,) = struct.unpack("q", struct.pack("d", eps))
    call_kernel_with_arguments(
        name,
        B,
        H,
        N,
        E,
        threads,
        *(number for x in views for number in kernel_argument_view(x)),
        rms,
        bits,
    )


def _forward(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """SRMS of x (B,H,N,E) over H and E, and the root mean squares (B,N)."""
    check_kernel_arguments("srms", x=(x, x.shape))
    y, rms = _fake(x, eps)
    _call("linnet_srms", rms, eps, memory_rows(x), y, None, None)
    return y, rms


def _fake(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return empty_memory_rows(x), x.new_empty(x.shape[0], x.shape[2])


def _backward(g: Tensor, y: Tensor, rms: Tensor, eps: float) -> Tensor:
    """The gradient of x."""
    check_kernel_arguments("srms", g=(g, g.shape), y=(y, g.shape), rms=(rms, (g.shape[0], g.shape[2])))
    dx = empty_memory_rows(y)
    _call("linnet_srms_backward", rms.contiguous(), eps, None, memory_rows(y), memory_rows(g), dx)
    return dx


def _backward_fake(g: Tensor, y: Tensor, rms: Tensor, eps: float) -> Tensor:
    return empty_memory_rows(y)


def _save(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    ctx.eps = inputs[1]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output)


def _gradients(ctx: Any, g: Tensor, _: Maybe) -> tuple[Maybe, ...]:
    y, rms = ctx.saved_tensors
    return _cpu_backward(g, y, rms, ctx.eps), None


_cpu_backward = CustomOp("cpu_srms_backward", _backward, _backward_fake)
srms = CustomOp("cpu_srms", _forward, _fake, (_save, _gradients))
