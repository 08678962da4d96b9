"""The gated linear unit on the CPU kernels: one pass each way; only its inputs are saved."""

from typing import Any

import torch
from torch import Tensor

from linnet.ops.cpu.arguments import SMALL, call_kernel_with_arguments, check_kernel_arguments
from linnet.ops.custom_op import CustomOp
from linnet.ops.memory import Maybe, memory_rows

ACTS = ("silu", "relu")  # in the order of their numbers in `struct Glu`


def _call(name: str, a: Tensor, b: Tensor, act: str, y: Maybe, g: Maybe, slopes: tuple[Maybe, Maybe]) -> None:
    """Fill in `struct Glu` and call the kernel."""
    threads = torch.get_num_threads() if 2 * a.numel() > SMALL else 1
    da, db = slopes
    call_kernel_with_arguments(
        name,
        *(*a.shape, ACTS.index(act), threads),
        *(a, b, a.stride(0), b.stride(0)),
        y,
        *(g, 0 if g is None else g.stride(0)),
        *(da, db, 0 if da is None else da.stride(0)),
    )


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.chunk(2, dim=1)
    return a, b


def _forward(x: Tensor, act: str) -> Tensor:
    """act(a) * b (R,w) of [a, b] = x (R,2w)."""
    check_kernel_arguments("glu", x=(x, x.shape))
    y = _fake(x, act)
    _call("linnet_glu", *_halves(memory_rows(x)), act, y, None, (None, None))
    return y


def _fake(x: Tensor, act: str) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


def _backward(g: Tensor, x: Tensor, act: str) -> Tensor:
    """The gradient of x, both halves side by side."""
    check_kernel_arguments("glu", g=(g, g.shape), x=(x, (g.shape[0], 2 * g.shape[1])))
    dx = _backward_fake(g, x, act)
    _call("linnet_glu_backward", *_halves(memory_rows(x)), act, None, memory_rows(g), _halves(dx))
    return dx


def _backward_fake(g: Tensor, x: Tensor, act: str) -> Tensor:
    return x.new_empty(x.shape)


def _save(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    x, ctx.act = inputs
    ctx.save_for_backward(x)


def _gradients(ctx: Any, g: Tensor) -> tuple[Maybe, ...]:
    (x,) = ctx.saved_tensors
    return _glu_backward(g, x, ctx.act), None


def _gate_forward(a: Tensor, b: Tensor, act: str) -> Tensor:
    """act(a) * b (R,w)."""
    check_kernel_arguments("gate", a=(a, a.shape), b=(b, a.shape))
    y = _gate_fake(a, b, act)
    _call("linnet_glu", memory_rows(a), memory_rows(b), act, y, None, (None, None))
    return y


def _gate_fake(a: Tensor, b: Tensor, act: str) -> Tensor:
    return a.new_empty(a.shape)


def _gate_backward(g: Tensor, a: Tensor, b: Tensor, act: str) -> tuple[Tensor, Tensor]:
    """The gradients of a and b."""
    check_kernel_arguments("gate", g=(g, g.shape), a=(a, g.shape), b=(b, g.shape))
    slopes = _gate_backward_fake(g, a, b, act)
    _call("linnet_glu_backward", memory_rows(a), memory_rows(b), act, None, memory_rows(g), slopes)
    return slopes


def _gate_backward_fake(g: Tensor, a: Tensor, b: Tensor, act: str) -> tuple[Tensor, Tensor]:
    return a.new_empty(a.shape), a.new_empty(a.shape)


def _gate_save(ctx: Any, inputs: tuple[Tensor, Tensor, str], output: Tensor) -> None:
    a, b, ctx.act = inputs
    ctx.save_for_backward(a, b)


def _gate_gradients(ctx: Any, g: Tensor) -> tuple[Maybe, ...]:
    return *_cpu_gate_backward(g, *ctx.saved_tensors, ctx.act), None


_glu_backward = CustomOp("cpu_glu_backward", _backward, _backward_fake)
glu = CustomOp("cpu_glu", _forward, _fake, (_save, _gradients))
_cpu_gate_backward = CustomOp("cpu_gate_backward", _gate_backward, _gate_backward_fake)
gate = CustomOp("cpu_gate", _gate_forward, _gate_fake, (_gate_save, _gate_gradients))
