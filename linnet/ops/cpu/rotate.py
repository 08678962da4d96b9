"""Rotary positions on the CPU kernels: the gradient is the same turn backward, so only the turns are saved."""

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


def _forward(x: Tensor, turn: Tensor, back: bool) -> Tensor:
    """x (B,H,N,D) turned by `turn` (N,D) or (B,N,D), cosines and sines alternately; or turned back."""
    B, _, N, D = x.shape
    check_kernel_arguments("rotate", x=(x, x.shape), turn=(turn, (N, D) if turn.dim() == 2 else (B, N, D)))
    y, x, turn = empty_memory_rows(x), memory_rows(x), turn.contiguous()
    threads = torch.get_num_threads() if x.numel() > SMALL else 1
    by_row = turn.stride(0) if turn.dim() == 3 else 0
    call_kernel_with_arguments(
        "linnet_rotate",
        *x.shape,
        threads,
        int(back),
        *kernel_argument_view(x),
        *kernel_argument_view(y),
        turn,
        by_row,
    )
    return y


def _fake(x: Tensor, turn: Tensor, back: bool) -> Tensor:
    return empty_memory_rows(x)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
    _, turn, ctx.back = inputs
    ctx.save_for_backward(turn)


def _gradients(ctx: Any, g: Tensor) -> tuple[Maybe, ...]:
    (turn,) = ctx.saved_tensors
    return rotate(g, turn, not ctx.back), None, None


rotate = CustomOp("cpu_rotate", _forward, _fake, (_save, _gradients))
