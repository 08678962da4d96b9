"""Attention on logarithms of features in Triton: the passes over the tokens, and the operator around them.

The backward pass needs the inputs, the output, and for each query its largest exponent r and the logarithm of its
denominator: e^(q_t + k_s - r_t - ln den_t) are then the normalized weights.
"""

from typing import Any

import torch
from torch import Tensor

from linnet.ops.custom_op import CustomOp
from linnet.ops.masks import Layout
from linnet.ops.memory import Maybe, dense_memory, empty_memory_rows, memory_rows
from linnet.ops.precision import FLOOR, State
from linnet.ops.rules import ExpRule
from linnet.ops.triton.exponential_values import sum_exponential_values
from linnet.ops.triton.exponential_weights import sum_exponential_weights
from linnet.ops.triton.states import Keys, states_around
from linnet.ops.triton.tiles import tile_minus_dots

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe, m0: Maybe, causal: bool
) -> Outputs:
    """o (B,H,N,E), r and the denominators' logarithms (B,H,N), and the state after the last token."""
    o, r, less, *_ = _fake(q, k, v, real, run, S0, z0, m0, causal)
    q, k, v = memory_rows(q), memory_rows(k), memory_rows(v)
    real, run, S0, z0, m0 = (dense_memory(x) for x in (real, run, S0, z0, m0))
    seen, after = states_around(k, v, real, run, causal, False, (S0, z0, m0), Keys(True, True))
    sum_exponential_values(o, q, k, v, seen, run, (r, less), real, forward=True)
    assert after.z1 is not None and after.m1 is not None
    return o, r, less, after.S1, after.z1, after.m1


def _fake(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe, m0: Maybe, causal: bool
) -> Outputs:
    (B, H, N, D), E = q.shape, v.shape[3]
    shapes = (B, H, N), (B, H, N), (B, H, D, E), (B, H, D), (B, H, D)
    r, less, S, z, m = (v.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return empty_memory_rows(v), r, less, S, z, m


def _backward(
    g: Tensor, gS: Maybe, gz: Maybe, q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe,
    m0: Maybe, causal: bool, o: Tensor, r: Tensor, less: Tensor, m1: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, S0 and z0."""
    dq, dk, dv = empty_memory_rows(q), empty_memory_rows(k), empty_memory_rows(v)
    g, q, k, v = memory_rows(g), memory_rows(q), memory_rows(k), memory_rows(v)
    gS, gz, S0, z0, m0, real, run = (dense_memory(x) for x in (gS, gz, S0, z0, m0, real, run))
    h = tile_minus_dots(g, memory_rows(o), None, 0.0)
    seen, _ = states_around(k, v, real, run, causal, False, (S0, z0, m0), Keys(True, True))
    sum_exponential_weights(dq, (q, k), (g, v), seen, run, (r, less), h, real, of_queries=True)
    start = (None, None, None) if gS is None and gz is None else (gS, gz, -m1)  # outgoing keys are relative to m1
    keys = Keys(True, True, y=h, less=(r, less))
    seen, after = states_around(q, g, None, run, causal, True, start, keys)
    sum_exponential_weights(dk, (k, q), (v, g), seen, run, (r, less), h, real, of_queries=False)
    sum_exponential_values(dv, k, q, g, seen, run, (r, less), real, forward=False)
    if m0 is None:
        return dq, dk, dv, r.new_empty(0), r.new_empty(0)
    U, u, peak = after[3:]
    assert u is not None and peak is not None
    factor = (m0.clamp(min=FLOOR) + peak).clamp(max=80).exp()
    return dq, dk, dv, U * factor.unsqueeze(-1), u * factor


def _backward_fake(
    g: Tensor, gS: Maybe, gz: Maybe, q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe,
    m0: Maybe, causal: bool, o: Tensor, r: Tensor, less: Tensor, m1: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    state = (r.new_empty(0),) * 2 if S0 is None or z0 is None else (torch.empty_like(S0), torch.empty_like(z0))
    return empty_memory_rows(q), empty_memory_rows(k), empty_memory_rows(v), *state


def _save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    *tensors, ctx.causal = inputs
    o, r, less, _, _, m = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(r, less, m)
    ctx.save_for_backward(*tensors, o, r, less, m)


def _gradients(ctx: Any, *gradients: Maybe) -> tuple[Maybe, ...]:
    g, _, _, gS, gz, _ = gradients
    saved = ctx.saved_tensors  # read once: activation checkpointing hands out each tensor only once
    inputs, outputs = saved[:8], saved[8:]
    g = torch.zeros_like(saved[2]) if g is None else g
    dq, dk, dv, dS, dz = _exponential_backward(g, gS, gz, *inputs, ctx.causal, *outputs)
    stateful = inputs[5] is not None
    return dq, dk, dv, None, None, dS if stateful else None, dz if stateful else None, None, None


_exponential_backward = CustomOp("triton_exponential_backward", _backward, _backward_fake)
exponential = CustomOp("triton_exponential", _forward, _fake, (_save, _gradients))


def triton_exp_attention(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: ExpRule, state: State | None
) -> tuple[Tensor, State]:
    """The backend "triton" of `exp_attention`."""
    before = (None, None, None) if state is None else tuple(part.float() for part in state)
    o, _, _, S, z, m = exponential(q, k, v, where.real, where.run, *before, rule.causal)
    return o, (S, z, m.detach())
