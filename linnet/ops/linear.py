"""Linear attention: o_t = sum_s (phi_q_t . phi_k_s) v_s, chunked, stateful, and linear in the number of tokens.

The causal form is a loop over chunks (`linear_causal.py`); the others are matrix products or two such loops. M1 of
docs/math.md.
"""

from typing import Any

import torch
from torch import Tensor

from linnet.errors import InputError, UnsupportedError
from linnet.ops import reference
from linnet.ops.backend import choose_kernel_backend
from linnet.ops.features import EluFeatures
from linnet.ops.linear_causal import causal_linear
from linnet.ops.masks import (
    Layout,
    attend_with_masks,
    check_mask_flags,
    check_state_and_mask,
    clear_masked,
    masked_clock,
)
from linnet.ops.precision import EPS, FLOOR, State, accumulator_precision, keep_precision
from linnet.ops.rules import LinearRule


def linear_attention(
    phi_q: Tensor,
    phi_k: Tensor,
    v: Tensor,
    causal: bool = True,
    normalize: bool = False,
    key_mask: Tensor | None = None,
    segments: Tensor | None = None,
    log_decay: Tensor | None = None,
    state: State | None = None,
    return_state: bool = False,
    backend: str | None = None,
) -> Any:
    """Linear attention of features phi_q, phi_k (B,H,N,D) over values v (B,H,N,E) -> (B,H,N,E).

    `normalize` divides by sum_s phi_q_t . phi_k_s, but by at least 1e-6. `log_decay` (H,) multiplies the weight of a
    key n tokens back by exp(n * log_decay). A state is (S,), or (S, z) if normalized: S (B,H,D,E), z (B,H,D), float32
    or wider. The result is o, or (o, state) with `return_state`. Half precision accumulates in float32.

    With causal=False phi_q may be (B,H',T,D), of another length and with more heads by a whole factor; o then is
    (B,H',T,E), and `key_mask` masks keys only.
    """
    check_mask_flags(causal=causal, normalize=normalize, return_state=return_state)
    rule = LinearRule(causal, normalize, log_decay=log_decay)

    def attend(q: Tensor, where: Layout) -> "tuple[Tensor, State]":  # quoted: the compiler cannot subscript it
        _check_extras(phi_k, v, rule, segments, state, return_state)
        return attend_linearly(q, phi_k, v, where, rule, state, backend)

    return attend_with_masks(attend, phi_q, phi_k, v, causal, key_mask, segments, return_state)


def attend_linearly(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: LinearRule, state: State | None = None,
    backend: str | None = None,
) -> tuple[Tensor, State]:  # fmt: skip
    """`linear_attention` of checked tensors from their layout, with its state: none where packed and not causal."""
    if rule.features is not None and not isinstance(rule.features, EluFeatures):
        q, k, rule = rule.features(q), rule.features(k), rule._replace(features=None)
        v = v.to(q.dtype)
    hurdle = "" if rule.log_decay is None else "log_decay is given"
    if q.shape[2] != k.shape[2]:
        hurdle = "q and k have different lengths or heads"
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # the compiler's backward pass fails on views of heads
    name = choose_kernel_backend("linear_attention", q, v, backend, hurdle)
    if rule.features is not None and name != "cpu":
        q, k, rule = rule.features(q), rule.features(k), rule._replace(features=None)
    return BACKENDS[name](q, k, v, where, rule, state)


def _torch(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: LinearRule, state: State | None
) -> tuple[Tensor, State]:
    """In PyTorch: chunked where causal, matrix products otherwise."""
    dtype, wide, rate = v.dtype, accumulator_precision(v.dtype), rule.log_decay
    if not rule.causal or (rate is not None and rate.requires_grad):  # half precision would spoil these sums
        q, k, v = q.to(wide), k.to(wide), v.to(wide)
    if rule.causal:
        time = None if rate is None else masked_clock(where, len(q))
        rate = None if rate is None else rate.clamp(min=FLOOR)  # -inf forgets all: 0 * -inf is NaN
        S0, z0 = (*state, None)[:2] if state is not None else (None, None)
        o, _, S, z = causal_linear(q, k, v, where.real, where.run, time, rate, S0, z0, rule.normalize, False)
        return o.to(dtype), (S, z) if rule.normalize else (S,)
    with keep_precision(v.device):
        if where.run is None:
            o, kept = _bidirectional(q, k, v, where.real, rule.normalize, state)
        else:
            o, kept = _packed(q, k, v, where.real, where.run, rule.normalize), ()
    return o.to(dtype), kept


def _cpu(q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: LinearRule, state: State | None) -> tuple[Tensor, State]:
    from linnet.ops.cpu.linear import cpu_linear_attention

    return cpu_linear_attention(q, k, v, where, rule, state)


def _triton(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: LinearRule, state: State | None
) -> tuple[Tensor, State]:
    from linnet.ops.triton.linear import triton_linear_attention

    return triton_linear_attention(q, k, v, where, rule, state)


BACKENDS = {"reference": reference.reference_linear, "torch": _torch, "cpu": _cpu, "triton": _triton}


def _check_extras(
    k: Tensor, v: Tensor, rule: LinearRule, segments: Tensor | None, state: State | None, return_state: bool
) -> None:
    """Raise a one-line error for a decay or a state that do not fit."""
    B, H, _, D = k.shape
    if rule.log_decay is not None:
        if not rule.causal:
            raise UnsupportedError("log_decay needs causal=True")
        if not isinstance(rule.log_decay, Tensor) or tuple(rule.log_decay.shape) != (H,):
            given = rule.log_decay
            shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise InputError(f"log_decay has shape {shape}: it must be a tensor (heads,) = ({H},)")
    if segments is not None and not rule.causal and (state is not None or return_state):
        raise UnsupportedError("a state together with segments needs causal=True")
    check_state_and_mask(state, [(B, H, D, v.shape[3]), (B, H, D)][: 1 + rule.normalize], v.device)


def _bidirectional(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, normalize: bool, state: State | None
) -> tuple[Tensor, State]:
    """Every query sees every real key: two matrix products."""
    k, v = clear_masked(real, k, v)
    S = k.mT @ v  # (B, H, D, E)
    S = S if state is None else S + state[0].to(S.dtype)
    if not normalize:
        return q @ S, (S,)  # M1
    z = k.sum(dim=2)  # (B, H, D)
    z = z if state is None else z + state[1].to(z.dtype)
    den = (q @ z[..., None]).clamp(min=EPS)  # (B, H, N, 1)
    return q @ S / den, (S, z)


def _packed(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, run: Tensor, normalize: bool) -> Tensor:
    """Bidirectional with segments: the keys up to t, plus the keys after t, each by a causal pass."""
    wide = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1) if normalize else v
    past = causal_linear(q, k, wide, real, run, None, None, None, None, False, False)[0]
    q, k, wide = (x.flip(2) for x in (q, k, wide))
    back = None if real is None else real.flip(1)
    future = causal_linear(q, k, wide, back, run.flip(1), None, None, None, None, False, True)[0]
    o = past + future.flip(2)
    return o[..., :-1] / o[..., -1:].clamp(min=EPS) if normalize else o
