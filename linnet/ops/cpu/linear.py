"""Linear attention on the CPU kernels: one call forward, one call backward, and the operator around them.

The kernels take float32 with any strides between tokens, heads and sequences, and the masks, runs and states of
`linnet/ops/linear.py`. With `phi`, they make the features of q and k that `linnet/ops/features.py` defines. The
backward pass rebuilds states and features, so that only the inputs are saved.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from linnet.ops.cpu.arguments import (
    call_kernel_with_arguments,
    check_kernel_arguments,
    kernel_argument_address,
    kernel_argument_shares,
    kernel_argument_sizes,
    kernel_argument_view,
)
from linnet.ops.custom_op import CustomOp
from linnet.ops.features import EluFeatures
from linnet.ops.masks import Layout
from linnet.ops.memory import Maybe, dense_memory, empty_memory_rows, memory_rows
from linnet.ops.positions import position_turns
from linnet.ops.precision import State
from linnet.ops.rules import LinearRule


def _call(
    name: str, q: Tensor, v: Tensor, normalize: bool, real: Maybe, run: Maybe, fields: tuple[Maybe, ...], phi: str,
    theta: Maybe, u: Maybe, position: Maybe,
) -> Maybe:  # fmt: skip
    """Fill in `struct Linear` and call the kernel; `fields` are its eight views, then its addresses.

    With theta and a gradient to give, the result is the gradient of theta in float64.
    """
    (B, H, N, D), E = q.shape, v.shape[3]
    threads, group, spans = kernel_argument_shares(q, D * E)
    if run is not None and name.startswith("linnet_bidirectional"):
        spans = 1
    turn = dtheta = feature = None
    if phi:
        if theta is not None and position is not None:
            turn, position = position_turns(theta, position).float().contiguous(), position.contiguous()
            if name.endswith("backward"):
                dtheta = torch.zeros(B * H * spans, D // 2, dtype=torch.float64)
        u = None if u is None else dense_memory(u.float())
        by_row = N if position is not None and position.dim() == 2 else 0
        places = (
            kernel_argument_address(turn),
            by_row * D,
            kernel_argument_address(u),
            kernel_argument_address(position),
            by_row,
            kernel_argument_address(dtheta),
        )
        feature = (ctypes.c_int64 * 7)(int(phi == "1+elu"), *places)
    views = [number for x in fields[:8] for number in kernel_argument_view(x)]
    numbers = B, H, N, D, E, int(normalize), threads, group, spans
    where = 0 if feature is None else ctypes.addressof(feature)
    call_kernel_with_arguments(
        name,
        *numbers,
        real,
        run,
        *views,
        *fields[8:],
        where,
    )
    return None if dtheta is None else dtheta.sum(dim=0)


def _check(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe, theta: Maybe, u: Maybe,
    position: Maybe,
) -> None:  # fmt: skip
    """One-line errors for inputs that do not fit together."""
    B, H, N, D, E = kernel_argument_sizes("linear_attention", q, v)
    by_row = position is not None and position.dim() == 2
    check_kernel_arguments(
        "linear_attention",
        q=(q, (B, H, N, D)),
        k=(k, (B, H, N, D)),
        v=(v, (B, H, N, E)),
        real=(real, (B, N)),
        run=(run, (B, N)),
        S=(S0, (B, H, D, E)),
        z=(z0, (B, H, D)),
        theta=(theta, (D // 2,)),
        u=(u, (D,)),
        position=(position, (B, N) if by_row else (N,)),
    )


def _forward(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe, causal: bool, normalize: bool,
    phi: str, theta: Maybe, u: Maybe, position: Maybe,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """o (B,H,N,E), its normalizer (B,H,N) or empty, and the state after the last token."""
    _check(q, k, v, real, run, S0, z0, theta, u, position)
    o, den, S, z = _fake(q, k, v, real, run, S0, z0, causal, normalize, phi, theta, u, position)
    q, k, v = memory_rows(q), memory_rows(k), memory_rows(v)
    real, run, S0, z0 = dense_memory(real), dense_memory(run), dense_memory(S0), dense_memory(z0)
    name = "linnet_causal" if causal else "linnet_bidirectional"
    fields = q, k, v, o, None, None, None, None, den, S0, z0, S, z, None, None, None, None
    _call(name, q, v, normalize, real, run, fields, phi, theta, u, position)
    return o, den, S, z


def _fake(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe, causal: bool, normalize: bool,
    phi: str, theta: Maybe, u: Maybe, position: Maybe,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    (B, H, N, D), E = q.shape, v.shape[3]
    den = v.new_empty(B, H, N if normalize else 0)
    return empty_memory_rows(v), den, v.new_empty(B, H, D, E), v.new_empty(B, H, D if normalize else 0)


def _backward(
    g: Tensor, gS: Maybe, gz: Maybe, q: Tensor, k: Tensor, v: Tensor, o: Maybe, den: Tensor, real: Maybe, run: Maybe,
    S0: Maybe, z0: Maybe, S1: Maybe, z1: Maybe, causal: bool, normalize: bool, phi: str, theta: Maybe, u: Maybe,
    position: Maybe,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, S0, z0 and theta, the last empty where there is none."""
    _check(q, k, v, real, run, S0, z0, theta, u, position)
    (B, H, N, D), E = q.shape, v.shape[3]
    sums, totals = (B, H, D, E), (B, H, D if normalize else 0)
    kept = {"o": (o, v.shape), "den": (den, (B, H, N if normalize else 0)), "S1": (S1, sums), "z1": (z1, totals)}
    check_kernel_arguments("linear_attention", g=(g, v.shape), gS=(gS, sums), gz=(gz, totals), **kept)
    dq, dk, dv, dS, dz, dtheta = _backward_fake(
        g, gS, gz, q, k, v, o, den, real, run, S0, z0, S1, z1, causal, normalize, phi, theta, u, position
    )
    g, q, k, v, o = (
        memory_rows(g),
        memory_rows(q),
        memory_rows(k),
        memory_rows(v),
        None if o is None else memory_rows(o),
    )
    gS, gz, S0, z0, real, run = (dense_memory(x) for x in (gS, gz, S0, z0, real, run))
    den, S1, z1 = den.contiguous(), dense_memory(S1), dense_memory(z1)
    name = "linnet_causal_backward" if causal else "linnet_bidirectional_backward"
    fields = q, k, v, o, g, dq, dk, dv, den, S0, z0, S1, z1, gS, gz, dS, dz
    found = _call(name, q, v, normalize, real, run, fields, phi, theta, u, position)
    return dq, dk, dv, dS, dz, dtheta.zero_() if found is None else found.to(dtheta.dtype)  # None: no positions


def _backward_fake(
    g: Tensor, gS: Maybe, gz: Maybe, q: Tensor, k: Tensor, v: Tensor, o: Maybe, den: Tensor, real: Maybe, run: Maybe,
    S0: Maybe, z0: Maybe, S1: Maybe, z1: Maybe, causal: bool, normalize: bool, phi: str, theta: Maybe, u: Maybe,
    position: Maybe,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    (B, H, _, D), E = q.shape, v.shape[3]
    state = v.new_empty(B, H, D, E), v.new_empty(B, H, D if normalize else 0)
    dtheta = v.new_empty(0) if theta is None else theta.new_empty(theta.shape)
    return empty_memory_rows(q), empty_memory_rows(k), empty_memory_rows(v), *state, dtheta


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, real, run, S0, z0, ctx.causal, ctx.normalize, ctx.phi, theta, u, position = inputs
    o, den, S, z = output
    ctx.set_materialize_grads(False)
    whole = (None, None) if ctx.causal or run is not None else (S, z)  # the state that all queries read
    ctx.save_for_backward(q, k, v, o if ctx.normalize else None, den, real, run, S0, z0, *whole, theta, u, position)


def _gradients(ctx: Any, *gradients: Maybe) -> tuple[Maybe, ...]:
    g, _, gS, gz = gradients
    *inputs, theta, u, position = ctx.saved_tensors
    v, S0, z0 = inputs[2], inputs[7], inputs[8]
    g = torch.zeros_like(v) if g is None else g
    dq, dk, dv, dS, dz, dtheta = _cpu_backward(
        g, gS, gz, *inputs, ctx.causal, ctx.normalize, ctx.phi, theta, u, position
    )
    state = None if S0 is None else dS, None if z0 is None else dz
    return dq, dk, dv, None, None, *state, None, None, None, None if theta is None else dtheta, None, None


_cpu_backward = CustomOp("cpu_linear_backward", _backward, _backward_fake)
linear = CustomOp("cpu_linear", _forward, _fake, (_save, _gradients))


def cpu_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: LinearRule, state: State | None
) -> tuple[Tensor, State]:
    """The backend "cpu" of `linear_attention`."""
    S0, z0 = (*(x.to(v.dtype) for x in state or ()), None, None)[:2]
    f = rule.features if isinstance(rule.features, EluFeatures) else EluFeatures("")
    made = f.phi, f.theta, f.u, f.position
    o, _, *after = linear(q, k, v, where.real, where.run, S0, z0, rule.causal, rule.normalize, *made)
    return o, tuple(after[: 1 + rule.normalize])
