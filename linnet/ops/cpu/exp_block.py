"""The mean of exponential and block attention on the CPU kernels: the second adds to the results of the first.

So neither the block's output nor a second set of gradients is ever stored.
"""

from typing import Any

import torch
from torch import Tensor

from linnet.ops.block import block_kernel_ids
from linnet.ops.cpu import exponential
from linnet.ops.cpu.block import call_cpu_block, check_cpu_block
from linnet.ops.custom_op import CustomOp
from linnet.ops.masks import Layout
from linnet.ops.memory import Maybe, dense_memory, empty_memory_rows, memory_rows
from linnet.ops.rules import ExpRule

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, real: Maybe, run: Maybe, ids: Maybe, block: int,
    causal: bool, scale: float,
) -> Outputs:  # fmt: skip
    """The mean (B,H,N,E), then what `exponential.forward` gives."""
    check_cpu_block(q, k, v, real, ids)
    far = exponential.forward_cpu_exponential(q, k, v, alpha, beta, real, run, None, None, None, causal)
    o = empty_memory_rows(v)
    views = memory_rows(q), memory_rows(k), memory_rows(v), o, far[0], None, None, None
    call_cpu_block("linnet_block", views, dense_memory(real), dense_memory(ids), block, False, causal, scale, join=True)
    return o, *far


def _fake(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, real: Maybe, run: Maybe, ids: Maybe, block: int,
    causal: bool, scale: float,
) -> Outputs:  # fmt: skip
    return empty_memory_rows(v), *exponential.fake_cpu_exponential(
        q, k, v, alpha, beta, real, run, None, None, None, causal
    )


def _backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, real: Maybe, run: Maybe, ids: Maybe,
    block: int, causal: bool, scale: float, far: Tensor, less: Tensor, r: Tensor, S: Maybe, z: Maybe, m: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v."""
    check_cpu_block(q, k, v, real, ids, None, g)
    dq, dk, dv, _, _ = exponential.backward_cpu_exponential(
        g, None, None, q, k, v, alpha, beta, real, run, None, None, None, causal, far, less, r, S, z, m
    )
    views = memory_rows(q), memory_rows(k), memory_rows(v), None, memory_rows(g), dq, dk, dv
    call_cpu_block(
        "linnet_block_backward", views, dense_memory(real), dense_memory(ids), block, False, causal, scale, join=True
    )
    return dq, dk, dv


def _backward_fake(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, real: Maybe, run: Maybe, ids: Maybe,
    block: int, causal: bool, scale: float, far: Tensor, less: Tensor, r: Tensor, S: Maybe, z: Maybe, m: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return empty_memory_rows(q), empty_memory_rows(k), empty_memory_rows(v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    *tensors, ctx.block, ctx.causal, ctx.scale = inputs
    _, far, less, r, S, z, m = output
    whole = (None, None) if ctx.causal or inputs[6] is not None else (S, z)  # the state that all queries read
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, far, less, r, *whole, m)


def _gradients(ctx: Any, *gradients: Maybe) -> tuple[Maybe, ...]:
    saved = ctx.saved_tensors  # read once: activation checkpointing hands out each tensor only once
    inputs, outputs = saved[:8], saved[8:]
    g = torch.zeros_like(saved[2]) if gradients[0] is None else gradients[0]
    slopes = _cpu_backward(g, *inputs, ctx.block, ctx.causal, ctx.scale, *outputs)
    return *slopes, None, None, None, None, None, None, None, None


_cpu_backward = CustomOp("cpu_exp_block_backward", _backward, _backward_fake)
exp_block = CustomOp("cpu_exp_block", _forward, _fake, (_save, _gradients))


def cpu_exp_block_mean(q: Tensor, k: Tensor, v: Tensor, where: Layout, size: int, rule: ExpRule) -> Tensor:
    """The mean of exponential attention by `rule` and of softmax in blocks of `size` tokens."""
    pair, ids = exponential.cpu_exponential_scales(q, rule), block_kernel_ids(where, size, len(q))
    o: Tensor = exp_block(q, k, v, *pair, where.real, where.run, ids, size, rule.causal, q.shape[3] ** -0.5)[0]
    return o
