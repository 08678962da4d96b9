"""Attention whose features are given as logarithms: exact and stable at any scale, in linear time.

    o_t = sum_s sum_c e^{q_tc + k_sc} v_s / sum_s sum_c e^{q_tc + k_sc}

Every weight is computed as e^x with x <= 0. A query refers to r_t = max_c(q_tc + the largest key it sees in channel c), so
that its denominator is at least 1. The keys before a chunk of tokens are a state (S, z, m): S_c = sum_s e^{k_sc - m_c} v_s,
z_c the same without v_s, m_c the largest key. `exponential_chunk.py` holds what happens inside a chunk; here are the loops.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.errors import InputError, unknown
from linnet.ops.exponential_chunk import FLOOR, Maybe, chunks, exp_, store, working
from linnet.ops.layout import layout

State = tuple[Tensor, Tensor, Tensor]
Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


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
    """Linear attention on log features: log_q and log_k (B, H, N, D), v (B, H, N, E) -> (B, H, N, E).

    Features may be -inf. A token that sees no real key gives zeros. A state (S (B, H, D, E), z (B, H, D), m (B, H, D)), in
    float32 or better, holds the keys of earlier calls; with `return_state` the result is (o, state).
    """
    if backend not in (None, "torch", "reference"):
        raise unknown("backend", backend, ("torch", "reference"))
    _check(log_q, log_k, v, state)
    if backend == "reference":
        from linnet.ops import reference

        return reference.exp_attention(log_q, log_k, v, causal, key_mask, segments, state, return_state)
    at = layout(log_q.shape[0], log_q.shape[2], key_mask, segments, v.device)
    state = _empty_state(log_k, v) if state is None else state
    S, z, m = (x.to(working(v)) for x in state)
    o, den, r, S, z, m = _attend(log_q, log_k, v, at.real, at.run, S, z, m, causal or at.run is not None)
    if at.run is not None and not causal:
        o = _add_later(o, den, r, log_q, log_k, v, at.real, at.run)
    return (o, (S, z, m.detach())) if return_state else o


def _check(q: Tensor, k: Tensor, v: Tensor, state: State | None) -> None:
    """One line for what does not fit together."""
    for name, x in (("log_q", q), ("log_k", k), ("v", v)):
        if x.ndim != 4 or x.shape[2] == 0:
            raise InputError(f"{name} has shape {tuple(x.shape)}: it must be (batch, heads, tokens >= 1, width)")
        if x.dtype != q.dtype or not x.is_floating_point():
            raise InputError(f"{name} has type {x.dtype}: log_q, log_k and v must share one floating type")
    if q.shape != k.shape or q.shape[:3] != v.shape[:3]:
        shapes = f"log_q {tuple(q.shape)}, log_k {tuple(k.shape)}, v {tuple(v.shape)}"
        raise InputError(f"{shapes}: batch, heads and tokens must agree, and the width of log_q and log_k")
    B, H, _, D = k.shape
    want, got = [(B, H, D, v.shape[-1]), (B, H, D), (B, H, D)], [tuple(x.shape) for x in state or ()]
    if state is not None and got != want:
        raise InputError(f"state has shapes {got}: S, z and m must be {want}")


def _empty_state(k: Tensor, v: Tensor) -> State:
    """The state of no keys."""
    (B, H, _, D), E = k.shape, v.shape[-1]
    S, z, m = (torch.zeros(shape, dtype=working(v), device=v.device) for shape in ((B, H, D, E), (B, H, D), (B, H, D)))
    return S, z, m.fill_(FLOOR)


def _add_later(
    o: Tensor, den: Tensor, r: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Tensor
) -> Tensor:
    """Joins a causal result with the later tokens of each token's run, which a second pass reads from the end."""

    def shifted(x: Tensor, dim: int) -> Tensor:
        """Tokens 0, N-1, ..., 1 stand beside the queries N-1, ..., 0: each key one token too late to see itself."""
        return torch.cat((x.narrow(dim, 0, 1), x.narrow(dim, 1, x.shape[dim] - 1).flip(dim)), dim)

    seen = F.pad(run[:, 1:] == run[:, :-1], (1, 0))  # the first key of a run is later than nobody
    seen = seen if real is None else seen & real
    parts = shifted(k, 2), shifted(v, 2), shifted(seen, 1), run.flip(1)
    later = _attend(q.flip(2), *parts, *_empty_state(k, v), True)
    o_, den_, r_ = (x.flip(2) for x in later[:3])
    top = torch.maximum(r, r_).detach()
    a, b = den * (r.detach() - top).exp(), den_ * (r_.detach() - top).exp()
    both = (a + b).masked_fill(a + b == 0, 1)
    return (o * (a / both).unsqueeze(-1) + o_ * (b / both).unsqueeze(-1)).to(v.dtype)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S: Tensor, z: Tensor, m: Tensor, causal: bool
) -> Outputs:
    """The op where a graph is recorded, else the plain function: a decoding step has no time for dispatch."""
    graph = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, S, z))
    fn = _forward_op if graph or torch.compiler.is_compiling() else _forward
    return fn(q, k, v, real, run, S, z, m, causal)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S: Tensor, z: Tensor, m: Tensor, causal: bool
) -> Outputs:
    """o, its denominator relative to e^r, r, and the state after the last token."""
    o, den, r = torch.empty_like(v), m.new_empty(q.shape[:3]), m.new_empty(q.shape[:3])
    with torch.autocast(v.device.type, enabled=False):
        T, top = _pack(S, z, m)
        parts = chunks(q, v, run, causal)
        if not causal:
            for at, c in parts:
                c.load_keys(at, k, v, real)
                T, top = c.absorb(T, top, c.k, c.v)
        for at, c in parts:
            c.load(c.q, at, q, -torch.inf)
            if causal:
                c.load_keys(at, k, v, real)
                c.load_runs(at, run)
            high = c.running_max(top) if causal else top
            r_ = torch.add(c.q, high, out=c.W).amax(-1, keepdim=True).clamp_(min=FLOOR)
            c.q.sub_(r_)
            num = torch.bmm(c.read(top, c.q, c.before), T)
            if causal:
                num.baddbmm_(c.scores(), c.v)
                T, top = c.absorb(T, top, c.k, c.v, c.before, c.after)
            d = num[..., -1:]
            store(den, at, d[..., 0])
            store(r, at, r_[..., 0])
            store(o, at, num[..., :-1].div_(d.masked_fill(d == 0, 1)))
        return o, den, r, *_unpack(T, S), top.view(m.shape)


def _backward(
    g: Tensor, dden: Tensor, dS: Tensor, dz: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe,
    S: Tensor, z: Tensor, m: Tensor, causal: bool, o: Tensor, den: Tensor, r: Tensor, m_last: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, S, z: with P_tsc = e^{q_tc + k_sc - r_t} / den_t <= 1 and h_t = g_t . o_t - den_t dden_t

    dq_tc = sum_s P_tsc (g_t . v_s - h_t), dk_sc = sum_t P_tsc (g_t . v_s - h_t), dv_s = sum_t sum_c P_tsc g_t.
    Queries read the state of earlier keys. Keys read, from the end, the state U of later queries with values (g_t, -h_t):
    it begins as the gradient of the state that went out and ends as that of the one that came in.
    """
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    with torch.autocast(v.device.type, enabled=False):
        (T, top), (U, peak) = _pack(S, z, m), _pack(dS, dz, -m_last)
        parts = chunks(q, v, run, causal)
        h = den * dden - torch.cat([(a.to(den.dtype) * b).sum(-1) for a, b in zip(g.split(64, 2), o.split(64, 2))], 2)
        less = den.log().masked_fill_(den == 0, torch.inf)  # takes rows that saw no key to -inf
        for at, c in [] if causal else parts:
            c.load_keys(at, k, v, real)
            T, top = c.absorb(T, top, c.k, c.v)
        for at, c in parts:
            c.load_queries(at, q, r, less, g, h)
            c.load_runs(at, run)
            store(dq, at, c.read(top, c.q, c.before).mul_(torch.bmm(c.g, T.mT)))
            if causal:
                c.load_keys(at, k, v, real)
                T, top = c.absorb(T, top, c.k, c.v, c.before, c.after)
            else:
                U, peak = c.absorb(U, peak, c.q, c.g)
        for at, c in reversed(parts):
            c.load_keys(at, k, v, real)
            c.load_runs(at, run)
            W = c.read(peak, c.k, c.after)
            dv_ = torch.bmm(W, U)
            torch.mul(W, torch.bmm(c.v, U.mT), out=c.dk)
            if causal:
                c.load_queries(at, q, r, less, g, h)
                c.load(c.dq, at, dq)
                c.running_max(torch.full_like(top, FLOOR))
                dv_.baddbmm_(c.scores(torch.bmm(c.g, c.v.mT)).mT, c.g)
                U, peak = c.absorb(U, peak, c.q, c.g, c.after, c.before)
                store(dq, at, c.dq)
            store(dk, at, c.dk)
            store(dv, at, dv_[..., :-1])
        U.mul_(exp_(_pack(S, z, m)[1] + peak).mT)
        return dq, dk, dv, *_unpack(U, S)


def _pack(S: Tensor, z: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """A state as (G, D, E + 1) and (G, 1, D)."""
    return torch.cat((S, z.unsqueeze(-1)), -1).flatten(0, 1), m.flatten(0, 1).unsqueeze(1).clamp(min=FLOOR)


def _unpack(T: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """S and z again."""
    T = T.unflatten(0, like.shape[:2])
    return T[..., :-1].contiguous(), T[..., -1].contiguous()


_forward_op = torch.library.custom_op("linnet::exp_attention", _forward, mutates_args=())
_backward_op = torch.library.custom_op("linnet::exp_attention_backward", _backward, mutates_args=())


@_forward_op.register_fake
def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S: Tensor, z: Tensor, m: Tensor, causal: bool
) -> Outputs:
    den, r = m.new_empty(q.shape[:3]), m.new_empty(q.shape[:3])
    return torch.empty_like(v), den, r, S.new_empty(S.shape), z.new_empty(z.shape), m.new_empty(m.shape)


@_backward_op.register_fake
def _backward_fake(
    g: Tensor, dden: Tensor, dS: Tensor, dz: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe,
    S: Tensor, z: Tensor, m: Tensor, causal: bool, o: Tensor, den: Tensor, r: Tensor, m_last: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), S.new_empty(S.shape), z.new_empty(z.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    *tensors, ctx.causal = inputs
    o, den, r, _, _, m = output
    ctx.save_for_backward(*tensors, o, den, r, m)


def _gradients(ctx: Any, g: Tensor, dden: Tensor, dr: Tensor, dS: Tensor, dz: Tensor, dm: Tensor) -> tuple[Maybe, ...]:
    inputs, outputs = ctx.saved_tensors[:8], ctx.saved_tensors[8:]
    dq, dk, dv, dS, dz = _backward_op(g, dden, dS, dz, *inputs, ctx.causal, *outputs)
    return dq, dk, dv, None, None, dS, dz, None, None


_forward_op.register_autograd(_gradients, setup_context=_save)
