"""Attention on logarithms of features on the CPU kernels: one call forward, one backward, and their operator.

Inputs are those of `linnet/ops/exponential.py`. The kernels multiply q and k by alpha and beta (B,H,N) or (B,H,1), so
no scaled copy exists; neither has a gradient. The backward pass needs the inputs, the output, and for each query its
largest exponent r and the logarithm of its denominator.
"""

from typing import Any

import torch
from torch import Tensor

from linnet.ops.cpu.arguments import (
    call_kernel_with_arguments,
    check_kernel_arguments,
    kernel_argument_shares,
    kernel_argument_sizes,
    kernel_argument_view,
)
from linnet.ops.custom_op import CustomOp
from linnet.ops.masks import Layout
from linnet.ops.memory import Maybe, dense_memory, empty_memory_rows, memory_rows
from linnet.ops.precision import State
from linnet.ops.rules import ExpRule

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _call(name: str, q: Tensor, v: Tensor, real: Maybe, run: Maybe, *fields: Maybe) -> None:
    """Fill in `struct Exponential` and call the kernel; `fields` are its eight views, then its addresses."""
    (B, H, N, D), E, alpha = q.shape, v.shape[3], fields[-2]
    threads, group, _ = kernel_argument_shares(q, D * E)
    views = [number for x in fields[:8] for number in kernel_argument_view(x)]
    numbers = B, H, N, D, E, 1, min(threads, B * H), group, 1
    single = alpha is not None and alpha.shape[2] == 1
    call_kernel_with_arguments(
        name,
        *numbers,
        real,
        run,
        *views,
        *fields[8:],
        int(single),
    )


def _check(
    q: Tensor, k: Tensor, v: Tensor, alpha: Maybe, beta: Maybe, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe, m0: Maybe
) -> None:
    """One-line errors for inputs that do not fit together."""
    B, H, N, D, E = kernel_argument_sizes("exp_attention", q, v)
    scale = (B, H, 1 if alpha is not None and alpha.shape[2:3] == (1,) else N, 1)
    check_kernel_arguments(
        "exp_attention",
        q=(q, (B, H, N, D)),
        k=(k, (B, H, N, D)),
        v=(v, (B, H, N, E)),
        alpha=(alpha, scale),
        beta=(beta, scale),
        real=(real, (B, N)),
        run=(run, (B, N)),
        S=(S0, (B, H, D, E)),
        z=(z0, (B, H, D)),
        m=(m0, (B, H, D)),
    )


def forward_cpu_exponential(
    q: Tensor, k: Tensor, v: Tensor, alpha: Maybe, beta: Maybe, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe,
    m0: Maybe, causal: bool,
) -> Outputs:  # fmt: skip
    """o (B,H,N,E), the denominators' logarithms and r (B,H,N), and the state after the last token."""
    _check(q, k, v, alpha, beta, real, run, S0, z0, m0)
    results = o, less, r, S, z, m = fake_cpu_exponential(q, k, v, alpha, beta, real, run, S0, z0, m0, causal)
    q, k, v = memory_rows(q), memory_rows(k), memory_rows(v)
    alpha, beta, real, run, S0, z0, m0 = (dense_memory(x) for x in (alpha, beta, real, run, S0, z0, m0))
    name = "linnet_exp_causal" if causal else "linnet_exp_bidirectional"
    views = q, k, v, o, None, None, None, None
    _call(name, q, v, real, run, *views, less, S0, z0, S, z, None, None, None, None, None, r, m0, m, alpha, beta)
    return results


def fake_cpu_exponential(
    q: Tensor, k: Tensor, v: Tensor, alpha: Maybe, beta: Maybe, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe,
    m0: Maybe, causal: bool,
) -> Outputs:  # fmt: skip
    """Allocates the results of `forward_cpu_exponential`."""
    (B, H, N, D), E = q.shape, v.shape[3]
    state = v.new_empty(B, H, D, E), v.new_empty(B, H, D), v.new_empty(B, H, D)
    kept = N if causal else 0  # what the backward pass cannot recompute
    return empty_memory_rows(v), v.new_empty(B, H, kept), v.new_empty(B, H, kept), *state


def backward_cpu_exponential(
    g: Tensor, gS: Maybe, gz: Maybe, q: Tensor, k: Tensor, v: Tensor, alpha: Maybe, beta: Maybe, real: Maybe,
    run: Maybe, S0: Maybe, z0: Maybe, m0: Maybe, causal: bool, o: Tensor, less: Tensor, r: Tensor, S1: Maybe,
    z1: Maybe, m1: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, S0 and z0."""
    _check(q, k, v, alpha, beta, real, run, S0, z0, m0)
    (B, H, N, D), E = q.shape, v.shape[3]
    sums, totals, by_token = (B, H, D, E), (B, H, D), (B, H, N if causal else 0)
    kept = {"less": (less, by_token), "r": (r, by_token), "S1": (S1, sums), "z1": (z1, totals), "m1": (m1, totals)}
    check_kernel_arguments("exp_attention", g=(g, v.shape), o=(o, v.shape), gS=(gS, sums), gz=(gz, totals), **kept)
    results = dq, dk, dv, dS, dz = _backward_fake(
        g, gS, gz, q, k, v, alpha, beta, real, run, S0, z0, m0, causal, o, less, r, S1, z1, m1
    )
    g, q, k, v, o = memory_rows(g), memory_rows(q), memory_rows(k), memory_rows(v), memory_rows(o)
    alpha, beta, real, run = (dense_memory(x) for x in (alpha, beta, real, run))
    S0, z0, m0, gS, gz, S1, z1 = (dense_memory(x) for x in (S0, z0, m0, gS, gz, S1, z1))
    less, r, m1 = less.contiguous(), r.contiguous(), m1.contiguous()
    name = "linnet_exp_causal_backward" if causal else "linnet_exp_bidirectional_backward"
    views = q, k, v, o, g, dq, dk, dv
    _call(name, q, v, real, run, *views, less, S0, z0, S1, z1, gS, gz, dS, dz, None, r, m0, m1, alpha, beta)
    return results


def _backward_fake(
    g: Tensor, gS: Maybe, gz: Maybe, q: Tensor, k: Tensor, v: Tensor, alpha: Maybe, beta: Maybe, real: Maybe,
    run: Maybe, S0: Maybe, z0: Maybe, m0: Maybe, causal: bool, o: Tensor, less: Tensor, r: Tensor, S1: Maybe,
    z1: Maybe, m1: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    (B, H, _, D), E, there = q.shape, v.shape[3], S0 is not None
    state = v.new_empty(B, H, D if there else 0, E), v.new_empty(B, H, D if there else 0)
    return empty_memory_rows(q), empty_memory_rows(k), empty_memory_rows(v), *state


def _save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    *tensors, ctx.causal = inputs
    o, less, r, S, z, m = output
    ctx.set_materialize_grads(False)
    whole = (None, None) if ctx.causal or inputs[6] is not None else (S, z)  # the state that all queries read
    ctx.mark_non_differentiable(less, r, m)
    ctx.save_for_backward(*tensors, o, less, r, *whole, m)


def _gradients(ctx: Any, *gradients: Maybe) -> tuple[Maybe, ...]:
    g, _, _, gS, gz, _ = gradients
    saved = ctx.saved_tensors  # read once: activation checkpointing hands out each tensor only once
    inputs, outputs = saved[:10], saved[10:]
    g = torch.zeros_like(saved[2]) if g is None else g
    dq, dk, dv, dS, dz = _cpu_backward(g, gS, gz, *inputs, ctx.causal, *outputs)
    stateful = inputs[7] is not None
    return dq, dk, dv, None, None, None, None, dS if stateful else None, dz if stateful else None, None, None


_cpu_backward = CustomOp("cpu_exponential_backward", backward_cpu_exponential, _backward_fake)
exponential = CustomOp("cpu_exponential", forward_cpu_exponential, fake_cpu_exponential, (_save, _gradients))


def cpu_exp_attention(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: ExpRule, state: State | None
) -> tuple[Tensor, State]:
    """The backend "cpu" of `exp_attention`."""
    before = (None, None, None) if state is None else tuple(part.to(v.dtype) for part in state)
    o, _, _, S, z, m = exponential(
        q, k, v, *cpu_exponential_scales(q, rule), where.real, where.run, *before, rule.causal
    )
    return o, (S, z, m.detach())


def cpu_exponential_scales(q: Tensor, rule: ExpRule) -> list[Maybe]:
    """alpha and beta as (B,H,N,1) or (B,H,1,1)."""
    B, H = q.shape[:2]
    pair = rule.alpha, rule.beta
    return [None if x is None else x.expand(B, H, x.shape[-2] if x.dim() > 1 else 1, 1) for x in pair]


def _moments(x: Tensor, real: Maybe, whole: bool) -> tuple[Tensor, Tensor]:
    """Sum and sum of squares (B,H,N) of each token's entries in float64, 0 where not real; `whole`: (B,H,1), of all."""
    check_kernel_arguments("moments", x=(x, x.shape), real=(real, (x.shape[0], x.shape[2])))
    sums = _moments_fake(x, real, whole)
    x, real = memory_rows(x), dense_memory(real)
    threads, group, _ = kernel_argument_shares(x, x.shape[3])
    call_kernel_with_arguments(
        "linnet_moments",
        *x.shape,
        threads,
        group,
        whole,
        real,
        *kernel_argument_view(x),
        *sums,
    )
    return sums


def _moments_fake(x: Tensor, real: Maybe, whole: bool) -> tuple[Tensor, Tensor]:
    shape = (*x.shape[:2], 1) if whole else x.shape[:3]
    return x.new_empty(shape, dtype=torch.float64), x.new_empty(shape, dtype=torch.float64)


moments = CustomOp("cpu_moments", _moments, _moments_fake)
