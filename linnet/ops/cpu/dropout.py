"""Dropout on the CPU kernels: one pass each way; only a seed is saved."""

import struct
from typing import Any

import torch
from torch import Tensor

from linnet.ops.cpu.arguments import SMALL, call_kernel_with_arguments, check_kernel_arguments
from linnet.ops.custom_op import CustomOp
from linnet.ops.memory import Maybe


def _forward(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """x with each number multiplied by 0 or by 1 / (1 - p)."""
    check_kernel_arguments("dropout", x=(x, x.shape), seed=(seed, ()))
    x = x.resolve_neg().contiguous()
    y = torch.empty_like(x)
    threads = torch.get_num_threads() if x.numel() > SMALL else 1
    (bits,) = struct.unpack("q", struct.pack("d", p))
    call_kernel_with_arguments("linnet_dropout", x.numel(), threads, x, y, bits, int(seed))
    return y


def _fake(x: Tensor, seed: Tensor, p: float) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    _, seed, ctx.p = inputs
    ctx.save_for_backward(seed)


def _gradients(ctx: Any, g: Tensor) -> tuple[Maybe, ...]:
    (seed,) = ctx.saved_tensors
    return dropout(g, seed, ctx.p), None, None


dropout = CustomOp("cpu_dropout", _forward, _fake, (_save, _gradients))
