"""Attention with features given as logarithms, exact and stable at any scale, in linear time.

    o_t = sum_s sum_c e^{q_tc + k_sc} v_s / sum_s sum_c e^{q_tc + k_sc}

Every weight is computed as e^x with x <= 0: a query t refers to r_t = max_c(q_tc + the largest key it sees in c), and
keys that precede a set of queries refer to their own largest per channel. Between chunks of tokens the past is a state
(S, z, m): S_c = sum_s e^{k_sc - m_c} v_s, z_c the same without v_s, m_c the largest key. Inside a chunk the first half
of every block of 2, 4, 8, ... tokens serves its second half, so that nothing ever looks at a later key.

In here G = B * H, and z is the last column of S (and 1 the last of v), so that numerator and denominator are one product.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.errors import InputError, unknown
from linnet.ops.layout import layout

State = tuple[Tensor, Tensor, Tensor]

CHUNK = 64  # tokens between two states
LEAF = 4  # tokens whose pairs are taken one by one
FLOOR = -1e30  # the largest of no keys: e^{-inf - FLOOR} is 0, where e^{-inf + inf} would be NaN


def exp_attention(
    log_q: Tensor,
    log_k: Tensor,
    v: Tensor,
    causal: bool = True,
    key_mask: Tensor | None = None,
    segments: Tensor | None = None,
    state: State | None = None,
    return_state: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, State]:
    """Linear attention on log features: queries and keys (B, H, N, D), values (B, H, N, E) -> (B, H, N, E).

    Features may be -inf. A token that sees no real key gives zeros. A state (S (B, H, D, E), z (B, H, D), m (B, H, D))
    holds the keys of past calls, at least in float32; `return_state=True` returns (o, state).
    """
    if backend not in (None, "torch", "reference"):
        raise unknown("backend", backend, ("torch", "reference"))
    _check(log_q, log_k, v, state)
    if backend == "reference":
        from linnet.ops import reference

        return reference.exp_attention(log_q, log_k, v, causal, key_mask, segments, state, return_state)
    (B, H, N, D), E = log_q.shape, v.shape[-1]
    where = layout(B, N, key_mask, segments, v.device)
    work = torch.promote_types(v.dtype, torch.float32)
    if state is None:
        S, z, m = (torch.zeros(B, H, *shape, dtype=work, device=v.device) for shape in ((D, E), (D,), (D,)))
        m = m + FLOOR
    else:
        S, z, m = (x.to(work) for x in state)
    both = not causal and where.run is not None
    o, den, r, *new = _run(log_q, log_k, v, where.real, where.run, S, z, m, causal or both)
    if both:
        o = _with_later(o, den, r, log_q, log_k, v, where.real, where.run)
    return (o, (new[0], new[1], new[2].detach())) if return_state else o


def _check(q: Tensor, k: Tensor, v: Tensor, state: State | None) -> None:
    """One line for what does not fit together."""
    for name, x in (("log_q", q), ("log_k", k), ("v", v)):
        if x.ndim != 4 or x.shape[2] == 0:
            raise InputError(f"{name} has shape {tuple(x.shape)}: it must be (batch, heads, tokens >= 1, width)")
        if not x.is_floating_point() or x.dtype != q.dtype:
            raise InputError(f"{name} has type {x.dtype}: log_q, log_k and v must share one floating type")
    if q.shape != k.shape or q.shape[:3] != v.shape[:3]:
        raise InputError(
            f"log_q {tuple(q.shape)}, log_k {tuple(k.shape)} and v {tuple(v.shape)} do not fit: "
            "batch, heads and tokens must agree, and the width of log_q and log_k"
        )
    (B, H, _, D), E = q.shape, v.shape[-1]
    want = ((B, H, D, E), (B, H, D), (B, H, D))
    if state is not None and tuple(tuple(x.shape) for x in state) != want:
        raise InputError(f"state has shapes {[tuple(x.shape) for x in state]}: it must be (S, z, m) with {list(want)}")


def _with_later(
    o: Tensor, den: Tensor, r: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, run: Tensor
) -> Tensor:
    """Joins a causal result with what each token sees of its own run after itself: a second pass from the end."""

    def from_end(x: Tensor, dim: int) -> Tensor:
        """Tokens 0, N-1, ..., 1: next to the queries N-1, ..., 0, each key is one token late."""
        first, rest = x.split((1, x.shape[dim] - 1), dim)
        return torch.cat((first, rest.flip(dim)), dim)

    inside = F.pad(run[:, 1:] == run[:, :-1], (1, 0))  # only these keys have an earlier token in their run
    seen = from_end(inside if real is None else inside & real, 1)
    B, H, D, E = *k.shape[:2], k.shape[-1], v.shape[-1]
    S, z, m = den.new_zeros(B, H, D, E), den.new_zeros(B, H, D), den.new_full((B, H, D), FLOOR)
    later = _run(q.flip(2), from_end(k, 2), from_end(v, 2), seen, run.flip(1), S, z, m, True)
    o_, den_, r_ = (x.flip(2) for x in later[:3])
    R = torch.maximum(r, r_).detach()
    a, b = den * (r.detach() - R).exp(), den_ * (r_.detach() - R).exp()
    total = (a + b).masked_fill(a + b == 0, 1)
    return (o * (a / total).unsqueeze(-1) + o_ * (b / total).unsqueeze(-1)).to(v.dtype)


def _run(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, run: Tensor | None, S: Tensor, z: Tensor, m: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The op where a graph is recorded, else the plain function: a decoding step has no time for dispatch."""
    graph = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, S, z))
    fn = _attend if graph or torch.compiler.is_compiling() else _forward
    return fn(q, k, v, real, run, S, z, m, causal)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, run: Tensor | None, S: Tensor, z: Tensor, m: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, its denominator relative to e^r, r, and the state after the last token."""
    (B, H, N, D), E = q.shape, v.shape[-1]
    o, den, r = torch.empty_like(v), m.new_empty(B, H, N), m.new_empty(B, H, N)
    runs = _runs(run, H)
    with torch.autocast(v.device.type, enabled=False):
        T, top = _join(S, z), m.flatten(0, 1).clamp(min=FLOOR)
        if not causal:
            for at, C in _chunks(N):
                T, top = _absorb(T, top, _take(k, at, C, real), _take(v, at, C, real, 1.0, 1), None)
        for at, C in _chunks(N):
            q_, run_ = _take(q, at, C), None if runs is None else runs[:, at : at + C + 2]
            if causal:
                k_, v_ = _take(k, at, C, real), _take(v, at, C, real, 1.0, 1)
                high = _running_max(k_, top, run_)  # (G, C, D)
            else:
                high = top.unsqueeze(1)
            r_ = (q_ + high).amax(-1).clamp_(min=FLOOR)
            q_ = q_ - r_.unsqueeze(-1)
            W = _exp_(_hide(q_ + top.unsqueeze(1), *_ends(run_, 1, -1, 0)))
            num = torch.bmm(W, T)
            if causal:
                num.baddbmm_(_scores(q_, k_, high, run_), v_)
                T, top = _absorb(T, top, k_, v_, run_)
            d = num[..., -1]
            _put(o, at, num[..., :-1] / d.masked_fill(d == 0, 1).unsqueeze(-1))
            _put(den, at, d)
            _put(r, at, r_)
        T, top = T.unflatten(0, (B, H)), top.unflatten(0, (B, H))
        return o, den, r, T[..., :-1].contiguous(), T[..., -1].contiguous(), top
