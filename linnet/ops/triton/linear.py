"""Linear attention in Triton: the passes over the tokens, forward and backward, and the operator around them.

The backward pass rebuilds the states, so only the inputs are saved, and the output if normalized.
"""

from typing import Any

import torch
from torch import Tensor

from linnet.ops.custom_op import CustomOp
from linnet.ops.masks import Layout
from linnet.ops.memory import Maybe, dense_memory, empty_memory_rows, memory_rows
from linnet.ops.precision import EPS, State
from linnet.ops.rules import LinearRule
from linnet.ops.triton.linear_kernel import Extras, linear_kernel_sum
from linnet.ops.triton.states import Keys, states_around
from linnet.ops.triton.tiles import tile_minus_dots


def _forward(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe, causal: bool, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o (B,H,N,E), its normalizer (B,H,N) or empty, and the state after the last token."""
    o, den, _, z = _fake(q, k, v, real, run, S0, z0, causal, normalize)
    q, k, v = memory_rows(q), memory_rows(k), memory_rows(v)
    real, run, S0, z0 = dense_memory(real), dense_memory(run), dense_memory(S0), dense_memory(z0)
    seen, after = states_around(k, v, real, run, causal, False, (S0, z0, None), Keys(normalize))
    linear_kernel_sum(o, q, k, v, seen, run, Extras(den=den if normalize else None, real_keys=real))
    return o, den, after.S1, z if after.z1 is None else after.z1


def _fake(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe, causal: bool, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (B, H, N, D), E, wide = q.shape, v.shape[3], torch.float32
    den = v.new_empty(B, H, N if normalize else 0, dtype=wide)
    state = v.new_empty(B, H, D, E, dtype=wide), v.new_empty(B, H, D if normalize else 0, dtype=wide)
    return empty_memory_rows(v), den, *state


def _backward(
    g: Tensor, gS: Maybe, gz: Maybe, q: Tensor, k: Tensor, v: Tensor, o: Maybe, den: Tensor, real: Maybe, run: Maybe,
    S0: Maybe, z0: Maybe, causal: bool, normalize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, S0 and z0."""
    dq, dk, dv = empty_memory_rows(q), empty_memory_rows(k), empty_memory_rows(v)
    g, q, k, v = memory_rows(g), memory_rows(q), memory_rows(k), memory_rows(v)
    gS, gz, S0, z0, real, run = (dense_memory(x) for x in (gS, gz, S0, z0, real, run))
    h = gain = None
    if o is not None:
        h, gain = tile_minus_dots(g, memory_rows(o), den, EPS), den.reciprocal()
    seen, _ = states_around(k, v, real, run, causal, False, (S0, z0, None), Keys(normalize))
    linear_kernel_sum(dq, g, v, k, seen.turned(), run, Extras(x=h, gain=gain, real_keys=real))
    seen, after = states_around(q, g, None, run, causal, True, (gS, gz, None), Keys(normalize, y=h, c=gain))
    linear_kernel_sum(dv, k, q, g, seen, run, Extras(c=gain, real_out=real))
    linear_kernel_sum(dk, v, g, q, seen.turned(), run, Extras(y=h, c=gain, real_out=real))
    dz = v.new_empty(*q.shape[:2], 0, dtype=torch.float32) if after.z1 is None else after.z1
    return dq, dk, dv, after.S1, dz


def _backward_fake(
    g: Tensor, gS: Maybe, gz: Maybe, q: Tensor, k: Tensor, v: Tensor, o: Maybe, den: Tensor, real: Maybe, run: Maybe,
    S0: Maybe, z0: Maybe, causal: bool, normalize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    _, _, *state = _fake(q, k, v, real, run, S0, z0, causal, normalize)
    return empty_memory_rows(q), empty_memory_rows(k), empty_memory_rows(v), state[0], state[1]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, real, run, S0, z0, ctx.causal, ctx.normalize = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, output[0] if ctx.normalize else None, output[1], real, run, S0, z0)


def _gradients(ctx: Any, *gradients: Maybe) -> tuple[Maybe, ...]:
    g, _, gS, gz = gradients
    saved = ctx.saved_tensors  # read once: activation checkpointing hands out each tensor only once
    S0, z0 = saved[7:]
    g = torch.zeros_like(saved[2]) if g is None else g
    dq, dk, dv, dS, dz = _linear_backward(g, gS, gz, *saved, ctx.causal, ctx.normalize)
    return dq, dk, dv, None, None, None if S0 is None else dS, None if z0 is None else dz, None, None


_linear_backward = CustomOp("triton_linear_backward", _backward, _backward_fake)
linear = CustomOp("triton_linear", _forward, _fake, (_save, _gradients))


def triton_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: LinearRule, state: State | None
) -> tuple[Tensor, State]:
    """The backend "triton" of `linear_attention`."""
    S0, z0 = (*(x.float() for x in state or ()), None, None)[:2]
    o, _, *after = linear(q, k, v, where.real, where.run, S0, z0, rule.causal, rule.normalize)
    return o, tuple(after[: 1 + rule.normalize])
