"""Block attention on the CPU kernels: one call forward, one call backward, and the operator around them.

`ids` (B,N) are equal for tokens of one block, or None where blocks begin at the first token. Only inputs are saved.
`seed`, a whole number in a tensor, decides which weights `dropout` drops.
"""

import struct
from typing import Any

import torch
from torch import Tensor

from linnet.ops.block import block_kernel_ids
from linnet.ops.cpu.arguments import (
    SMALL,
    call_kernel_with_arguments,
    check_kernel_arguments,
    kernel_argument_sizes,
    kernel_argument_view,
)
from linnet.ops.custom_op import CustomOp
from linnet.ops.hashing import new_hashing_seed
from linnet.ops.masks import Layout
from linnet.ops.memory import Maybe, dense_memory, empty_memory_rows, memory_rows
from linnet.ops.rules import BlockRule


def call_cpu_block(
    name: str, views: tuple[Maybe, ...], real: Maybe, ids: Maybe, block: int, rela: bool, causal: bool, scale: float,
    join: bool = False, seed: Maybe = None, dropout: float = 0.0,
) -> None:  # fmt: skip
    """Fill in `struct Block`, which begins with a `struct Linear` without states or features, and call the kernel."""
    q, v = views[0], views[2]
    assert q is not None
    assert v is not None
    (B, H, N, D), E = q.shape, v.shape[3]
    block = min(block, N)
    threads = torch.get_num_threads() if B * H * N * block * (D + E) > SMALL else 1
    numbers = [number for x in views for number in kernel_argument_view(x)]
    scale_bits, dropout_bits = struct.unpack("qq", struct.pack("dd", scale, dropout))
    shared = B, H, N, D, E, 0, threads, 1, 1
    own = block, int(rela), int(causal), scale_bits, int(join), dropout_bits, 0 if seed is None else int(seed)
    call_kernel_with_arguments(name, *shared, real, ids, *numbers, *(0,) * 10, *own)


def check_cpu_block(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, ids: Maybe, seed: Maybe = None, g: Maybe = None
) -> None:
    """One-line errors for inputs that do not fit together."""
    B, H, N, _, E = kernel_argument_sizes("block_attention", q, v)
    values = (B, H, N, E)
    tokens = {"q": (q, q.shape), "k": (k, q.shape), "v": (v, values), "g": (g, values)}
    check_kernel_arguments("block_attention", **tokens, real=(real, (B, N)), ids=(ids, (B, N)), seed=(seed, ()))


def _forward(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, ids: Maybe, seed: Maybe, block: int, rela: bool, causal: bool,
    scale: float, dropout: float,
) -> Tensor:  # fmt: skip
    """o (B,H,N,E)."""
    check_cpu_block(q, k, v, real, ids, seed)
    o = empty_memory_rows(v)
    views = memory_rows(q), memory_rows(k), memory_rows(v), o, None, None, None, None
    call_cpu_block(
        "linnet_block", views, dense_memory(real), dense_memory(ids), block, rela, causal, scale, False, seed, dropout
    )
    return o


def _fake(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, ids: Maybe, seed: Maybe, block: int, rela: bool, causal: bool,
    scale: float, dropout: float,
) -> Tensor:  # fmt: skip
    return empty_memory_rows(v)


def _backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Maybe, ids: Maybe, seed: Maybe, block: int, rela: bool,
    causal: bool, scale: float, dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v."""
    check_cpu_block(q, k, v, real, ids, seed, g)
    slopes = empty_memory_rows(q), empty_memory_rows(k), empty_memory_rows(v)
    views = memory_rows(q), memory_rows(k), memory_rows(v), None, memory_rows(g), *slopes
    masks = dense_memory(real), dense_memory(ids)
    call_cpu_block("linnet_block_backward", views, *masks, block, rela, causal, scale, False, seed, dropout)
    return slopes


def _backward_fake(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Maybe, ids: Maybe, seed: Maybe, block: int, rela: bool,
    causal: bool, scale: float, dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return empty_memory_rows(q), empty_memory_rows(k), empty_memory_rows(v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.block, ctx.rela, ctx.causal, ctx.scale, ctx.dropout = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, g: Tensor) -> tuple[Maybe, ...]:
    slopes = _cpu_backward(g, *ctx.saved_tensors, ctx.block, ctx.rela, ctx.causal, ctx.scale, ctx.dropout)
    return *slopes, None, None, None, None, None, None, None, None


_cpu_backward = CustomOp("cpu_block_backward", _backward, _backward_fake)
block = CustomOp("cpu_block", _forward, _fake, (_save, _gradients))


def cpu_block_attention(q: Tensor, k: Tensor, v: Tensor, where: Layout, size: int, rule: BlockRule) -> Tensor:
    """The backend "cpu" of `block_attention`."""
    seed = new_hashing_seed(q.device) if rule.dropout else None
    ids, rela = block_kernel_ids(where, size, len(q)), rule.kind == "rela"
    o: Tensor = block(q, k, v, where.real, ids, seed, size, rela, rule.causal, rule.scale, rule.dropout)
    return o
