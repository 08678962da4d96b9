"""How uneven the scores of each query with a few sampled keys are, on the CPU kernels; it carries no gradient."""

import struct

import torch
from torch import Tensor

from linnet.ops.cpu.arguments import (
    SMALL,
    call_kernel_with_arguments,
    check_kernel_arguments,
    kernel_argument_view,
)
from linnet.ops.custom_op import CustomOp
from linnet.ops.memory import Maybe, dense_memory, memory_rows


def _forward(q: Tensor, k: Tensor, real: Maybe, seed: Tensor, length: Tensor, budget: Tensor, scale: float) -> Tensor:
    """M (B,H,N) of rows of `length` tokens that sample `budget` keys per query, (B,) each."""
    B, H, N, D = q.shape
    counts = {"length": (length, (B,)), "budget": (budget, (B,))}
    check_kernel_arguments("unevenness", q=(q, q.shape), k=(k, q.shape), real=(real, (B, N)), seed=(seed, ()), **counts)
    q, k, real = memory_rows(q), memory_rows(k), dense_memory(real)
    length, budget = length.clamp(min=1, max=N).contiguous(), budget.contiguous()
    M = q.new_empty(B, H, N)
    threads = torch.get_num_threads() if q.numel() * 64 > SMALL else 1
    (scale_bits,) = struct.unpack("q", struct.pack("d", scale))
    places = (
        real,
        length,
        budget,
        M,
        scale_bits,
    )
    call_kernel_with_arguments(
        "linnet_sample", B, H, N, D, threads, int(seed), *kernel_argument_view(q), *kernel_argument_view(k), *places
    )
    return M


def _fake(q: Tensor, k: Tensor, real: Maybe, seed: Tensor, length: Tensor, budget: Tensor, scale: float) -> Tensor:
    return q.new_empty(q.shape[:3])


sample_unevenness = CustomOp("cpu_unevenness", _forward, _fake)
