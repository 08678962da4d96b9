"""Linear attention on the CPU's kernels: one call forward, one backward, and the operator around them.

The kernels take float32 with any strides between tokens, heads and sequences; masks, runs and states as `linear.py` of
the ops has them. The backward pass rebuilds the states, so that only the inputs are saved.
"""

from typing import Any

import torch
from torch import Tensor

from linnet.ops.cpu.arguments import Maybe, address, call, dense, empty_rows, rows, shares, view
from linnet.ops.operator import Operator


def _call(name: str, q: Tensor, v: Tensor, normalize: bool, real: Maybe, run: Maybe, *fields: Maybe) -> None:
    """Fill in `struct Linear` and call the kernel; `fields` are its eight views, then its addresses."""
    (B, H, N, D), E = q.shape, v.shape[3]
    threads, group, spans = shares(q, D * E)
    if run is not None and name.startswith("linnet_bidirectional"):
        spans = 1
    views = [number for x in fields[:8] for number in view(x)]
    sizes = B, H, N, D, E, int(normalize), threads, group, spans
    call(name, *sizes, address(real), address(run), *views, *(address(x) for x in fields[8:]))


def _forward(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe, causal: bool, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """o (B,H,N,E), its normalizer (B,H,N) or empty, and the state after the last token."""
    o, den, S, z = _fake(q, k, v, real, run, S0, z0, causal, normalize)
    q, k, v = rows(q), rows(k), rows(v)
    real, run, S0, z0 = dense(real), dense(run), dense(S0), dense(z0)
    name = "linnet_causal" if causal else "linnet_bidirectional"
    _call(name, q, v, normalize, real, run, q, k, v, o, None, None, None, None, den, S0, z0, S, z)
    return o, den, S, z


def _fake(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S0: Maybe, z0: Maybe, causal: bool, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (B, H, N, D), E = q.shape, v.shape[3]
    den = v.new_empty(B, H, N if normalize else 0)
    return empty_rows(v), den, v.new_empty(B, H, D, E), v.new_empty(B, H, D if normalize else 0)


def _backward(
    g: Tensor, gS: Maybe, gz: Maybe, q: Tensor, k: Tensor, v: Tensor, o: Maybe, den: Tensor, real: Maybe, run: Maybe,
    S0: Maybe, z0: Maybe, S1: Maybe, z1: Maybe, causal: bool, normalize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, S0 and z0."""
    dq, dk, dv, dS, dz = results = _backward_fake(
        g, gS, gz, q, k, v, o, den, real, run, S0, z0, S1, z1, causal, normalize
    )
    g, q, k, v, o = rows(g), rows(q), rows(k), rows(v), None if o is None else rows(o)
    gS, gz, S0, z0, real, run = (dense(x) for x in (gS, gz, S0, z0, real, run))
    name = "linnet_causal_backward" if causal else "linnet_bidirectional_backward"
    _call(name, q, v, normalize, real, run, q, k, v, o, g, dq, dk, dv, den, S0, z0, S1, z1, gS, gz, dS, dz)
    return results


def _backward_fake(
    g: Tensor, gS: Maybe, gz: Maybe, q: Tensor, k: Tensor, v: Tensor, o: Maybe, den: Tensor, real: Maybe, run: Maybe,
    S0: Maybe, z0: Maybe, S1: Maybe, z1: Maybe, causal: bool, normalize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    (B, H, _, D), E = q.shape, v.shape[3]
    state = v.new_empty(B, H, D, E), v.new_empty(B, H, D if normalize else 0)
    return empty_rows(q), empty_rows(k), empty_rows(v), *state


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, real, run, S0, z0, ctx.causal, ctx.normalize = inputs
    o, den, S, z = output
    ctx.set_materialize_grads(False)
    whole = (None, None) if ctx.causal or run is not None else (S, z)  # what all queries read
    ctx.save_for_backward(q, k, v, o if ctx.normalize else None, den, real, run, S0, z0, *whole)


def _gradients(ctx: Any, *gradients: Maybe) -> tuple[Maybe, ...]:
    g, _, gS, gz = gradients
    q, k, v, o, den, real, run, S0, z0, S1, z1 = ctx.saved_tensors
    g = torch.zeros_like(v) if g is None else g
    dq, dk, dv, dS, dz = _cpu_backward(g, gS, gz, q, k, v, o, den, real, run, S0, z0, S1, z1, ctx.causal, ctx.normalize)
    return dq, dk, dv, None, None, None if S0 is None else dS, None if z0 is None else dz, None, None


_cpu_backward = Operator("cpu_linear_backward", _backward, _backward_fake)
linear = Operator("cpu_linear", _forward, _fake, (_save, _gradients))
