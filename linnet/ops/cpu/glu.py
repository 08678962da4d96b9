"""The gated linear unit on the CPU kernels: one pass each way; only its input is saved."""

from typing import Any

import torch
from torch import Tensor

from linnet.ops.cpu.arguments import SMALL, call_kernel_with_arguments, check_kernel_arguments
from linnet.ops.custom_op import CustomOp
from linnet.ops.memory import Maybe, memory_rows

ACTS = ("silu", "relu")  # in the order of their numbers in `struct Glu`


def _call(name: str, x: Tensor, act: str, y: Maybe, g: Maybe, dx: Maybe) -> None:
    """Fill in `struct Glu` and call the kernel."""
    threads = torch.get_num_threads() if x.numel() > SMALL else 1
    sizes = x.shape[0], x.shape[1] // 2, ACTS.index(act), threads
    call_kernel_with_arguments(
        name,
        *sizes,
        x,
        x.stride(0),
        y,
        g,
        0 if g is None else g.stride(0),
        dx,
    )


def _forward(x: Tensor, act: str) -> Tensor:
    """act(a) * b (R,w) of [a, b] = x (R,2w)."""
    check_kernel_arguments("glu", x=(x, x.shape))
    y = _fake(x, act)
    _call("linnet_glu", memory_rows(x), act, y, None, None)
    return y


def _fake(x: Tensor, act: str) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


def _backward(g: Tensor, x: Tensor, act: str) -> Tensor:
    """The gradient of x, both halves side by side."""
    check_kernel_arguments("glu", g=(g, g.shape), x=(x, (g.shape[0], 2 * g.shape[1])))
    dx = _backward_fake(g, x, act)
    _call("linnet_glu_backward", memory_rows(x), act, None, memory_rows(g), dx)
    return dx


def _backward_fake(g: Tensor, x: Tensor, act: str) -> Tensor:
    return x.new_empty(x.shape)


def _save(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    x, ctx.act = inputs
    ctx.save_for_backward(x)


def _gradients(ctx: Any, g: Tensor) -> tuple[Maybe, ...]:
    (x,) = ctx.saved_tensors
    return _glu_backward(g, x, ctx.act), None


_glu_backward = CustomOp("cpu_glu_backward", _backward, _backward_fake)
glu = CustomOp("cpu_glu", _forward, _fake, (_save, _gradients))
