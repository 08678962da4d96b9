"""Attention whose features are given as logarithms: exact and stable at any scale, in linear time.

    o_t = sum_s sum_c e^{q_tc + k_sc} v_s / sum_s sum_c e^{q_tc + k_sc}

Every weight is computed as e^x with x <= 0. A query is relative to r_t = max_c(q_tc + the largest key it sees
in c), so its denominator is at least 1. A state (S, z, m) holds the keys before a chunk of tokens: m_c is the
largest key, S_c = sum_s e^{k_sc - m_c} v_s, and z_c is the same without v_s. This file has the loops over chunks;
`exponential_chunk.py` has the work inside one chunk. M11 and M12 of docs/math.md.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops import reference
from linnet.ops.backend import choose_kernel_backend
from linnet.ops.custom_op import CustomOp
from linnet.ops.exponential_chunk import Maybe, exponential_chunk_, exponential_chunks, store_exponential_chunk
from linnet.ops.masks import Layout, attend_with_masks, check_mask_flags, check_state_and_mask, clear_masked
from linnet.ops.precision import FLOOR, State, accumulator_precision, keep_precision
from linnet.ops.rules import ExpRule

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
) -> Any:
    """Linear attention on log features: log_q and log_k (B, H, N, D), v (B, H, N, E) -> (B, H, N, E).

    Features may be -inf; float32 resolves exponents up to about 1e5. A token that sees no real key gives
    zeros. A state holds the keys of earlier calls: S (B, H, D, E), z (B, H, D) and m (B, H, D), at least float32;
    `return_state=True` returns (o, state).

    With causal=False log_q may be (B, H', T, D), of another length and with more heads by a whole factor; o then is
    (B, H', T, E), and `key_mask` masks keys only.
    """

    def attend(q: Tensor, where: Layout) -> "tuple[Tensor, State]":  # quoted: the compiler cannot subscript it
        (B, H, _, D), E = log_k.shape, v.shape[3]
        check_state_and_mask(state, [(B, H, D, E), (B, H, D), (B, H, D)], v.device)
        return attend_exponentially(q, log_k, v, where, ExpRule(causal), state, backend)

    check_mask_flags(causal=causal, return_state=return_state)
    return attend_with_masks(attend, log_q, log_k, v, causal, key_mask, segments, return_state)


def attend_exponentially(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: ExpRule, state: State | None = None,
    backend: str | None = None,
) -> tuple[Tensor, State]:  # fmt: skip
    """`exp_attention` of checked tensors from their layout, with its state; scaled copies of q and k only if needed."""
    hurdle = "" if q.shape[2] == k.shape[2] else "q and k have different lengths or heads"
    name = choose_kernel_backend("exp_attention", q, v, backend, hurdle)
    if rule.alpha is not None and rule.beta is not None and name != "cpu":
        q, k, rule = rule.alpha * q, rule.beta * k, ExpRule(rule.causal)
    return BACKENDS[name](q, k, v, where, rule, state)


def _torch(q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: ExpRule, state: State | None) -> tuple[Tensor, State]:
    """In PyTorch: a loop over chunks, or matrix products where the queries are another sequence."""
    real, run, causal = where.real, where.run, rule.causal
    S, z, m = _empty_state(k, v) if state is None else (part.to(accumulator_precision(v.dtype)) for part in state)
    with keep_precision(v.device):
        if q.shape[2] != k.shape[2]:
            o, S, z, m = _across(q, k, v, real, S, z, m)
        elif q.shape[2] == 1:
            o, S, z, m = _step(q, k, v, real, S, z, m)
        else:
            o, den, r, S, z, m = _forward(q, k, v, real, run, S, z, m, causal or run is not None)
            if run is not None and not causal:
                o = _add_later(o, den, r, q, k, v, real, run)
    return o, (S, z, m.detach())


def _cpu(q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: ExpRule, state: State | None) -> tuple[Tensor, State]:
    from linnet.ops.cpu.exponential import cpu_exp_attention

    return cpu_exp_attention(q, k, v, where, rule, state)


def _triton(q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: ExpRule, state: State | None) -> tuple[Tensor, State]:
    from linnet.ops.triton.exponential import triton_exp_attention

    return triton_exp_attention(q, k, v, where, rule, state)


BACKENDS = {"reference": reference.reference_exp, "torch": _torch, "cpu": _cpu, "triton": _triton}


def exponential_moments(x: Tensor, real: Tensor | None, whole: bool = False) -> tuple[Tensor, Tensor] | None:
    """Sum and sum of squares of each token's entries, (B,H,N) in float64; None where the CPU kernels cannot run.

    With `whole`, sums over all tokens, (B,H,1).
    """
    if choose_kernel_backend("exp_attention", x, x, None) != "cpu":
        return None
    from linnet.ops.cpu.exponential import moments

    sums: tuple[Tensor, Tensor] = moments(x, real, whole)
    return sums


def _empty_state(k: Tensor, v: Tensor) -> State:
    """The state of no keys."""
    (B, H, _, D), E = k.shape, v.shape[-1]
    zeros = torch.zeros(B, H, D, E + 2, dtype=accumulator_precision(v.dtype), device=v.device)
    return zeros[..., :E], zeros[..., E], zeros[..., E + 1] + FLOOR


def _add_later(o: Tensor, den: Tensor, r: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Tensor) -> Tensor:
    """Adds to a causal result what each token sees of its run after itself, by a second pass from the end."""
    seen = F.pad(run[:, 1:] == run[:, :-1], (1, 0))  # the first key of a run is later than no token
    seen = seen if real is None else seen & real
    k, v_, seen = k.flip(2).roll(1, 2), v.flip(2).roll(1, 2), seen.flip(1).roll(1, 1)  # no token sees itself
    later = _forward(q.flip(2), k, v_, seen, run.flip(1), *_empty_state(k, v), True)
    o_, den_, r_ = (x.flip(2) for x in later[:3])
    top = torch.maximum(r, r_).detach()
    a, b = den * (r.detach() - top).exp(), den_ * (r_.detach() - top).exp()
    both = (a + b).masked_fill(a + b == 0, 1)
    return (o * (a / both).unsqueeze(-1) + o_ * (b / both).unsqueeze(-1)).to(v.dtype)


def _step(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, S: Tensor, z: Tensor, m: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One token adds to the state, then reads it, in plain operations: a decoding step is all overhead."""
    q, k, x = (y.squeeze(2).to(S.dtype) for y in (q, k, v))
    if real is not None:
        k, x = k.masked_fill(~real[:, None], -torch.inf), x.masked_fill(~real[:, None], 0)
    top = torch.maximum(m, k).detach().clamp_(min=FLOOR)  # (B, H, D)
    old, new = (m.detach() - top).exp(), (k - top).exp()
    S, z = S * old.unsqueeze(-1) + new.unsqueeze(-1) * x.unsqueeze(-2), z * old + new  # M12
    q = q + top
    W = (q - q.detach().amax(-1, keepdim=True).clamp_(min=FLOOR)).exp()
    num, den = W.unsqueeze(-2) @ S, (W * z).sum(-1)[..., None, None]
    return (num / den.masked_fill(den == 0, 1)).to(v.dtype), S, z, top  # M11


def absorb_exponential_keys(k: Tensor, v: Tensor, real: Maybe, state: State | None = None) -> State:
    """The state after the keys (B,H,N,D) that are real have joined `state`, in one step, whatever their order."""
    S, z, m = _empty_state(k, v) if state is None else state
    k, x = (y.to(S.dtype) for y in (k, *clear_masked(real, v)))
    k = k if real is None else k.masked_fill(~real[:, None, :, None], -torch.inf)
    top = torch.maximum(m, k.amax(2)).detach().clamp_(min=FLOOR)  # (B, H, D)
    old, new = (m.detach() - top).exp(), (k - top.unsqueeze(2)).exp()
    return S * old.unsqueeze(-1) + new.mT @ x, z * old + new.sum(2), top  # M12


def _across(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, S: Tensor, z: Tensor, m: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All keys (B,H,N,D) add to the state, then all queries (B,H,T,D) read it: two matrix products."""
    S, z, top = absorb_exponential_keys(k, v, real, (S, z, m))
    q = q.to(S.dtype) + top.unsqueeze(2)
    W = (q - q.detach().amax(-1, keepdim=True).clamp_(min=FLOOR)).exp()
    den = W @ z.unsqueeze(-1)  # (B, H, T, 1)
    return (W @ S / den.masked_fill(den == 0, 1)).to(v.dtype), S, z, top  # M11


def _forward_loop(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S: Tensor, z: Tensor, m: Tensor, causal: bool
) -> Outputs:
    """o, its denominator relative to e^r, r, and the state after the last token."""
    o, den, r = torch.empty_like(v), m.new_empty(q.shape[:3]), m.new_empty(q.shape[:3])
    T, top = _pack(S, z, m)
    parts = exponential_chunks(q, v, run, causal)
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
        store_exponential_chunk(den, at, d[..., 0])
        store_exponential_chunk(r, at, r_[..., 0])
        store_exponential_chunk(o, at, num[..., :-1].div_(d.masked_fill(d == 0, 1)))  # M11
    return o, den, r, *_unpack(T, S), top.view(m.shape)


def _backward_loop(
    g: Tensor, dden: Tensor, dS: Tensor, dz: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe,
    S: Tensor, z: Tensor, m: Tensor, causal: bool, o: Tensor, den: Tensor, r: Tensor, m_last: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, S, z. With P_tsc = e^{q_tc + k_sc - r_t} / den_t, h_t = g_t . o_t - den_t dden_t:

    dq_tc = sum_s P_tsc (g_t . v_s - h_t), dk_sc = sum_t P_tsc (g_t . v_s - h_t), dv_s = sum_tc P_tsc g_t.
    Queries read the state T of earlier keys. From the end, keys read the state U of later queries, whose values
    are (g_t, -h_t): U begins as the gradient of the outgoing state and ends as that of the incoming one.
    """
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    with keep_precision(v.device):
        (T, top), (U, peak) = _pack(S, z, m), _pack(dS, dz, -m_last)
        parts = exponential_chunks(q, v, run, causal)
        less = den.log().masked_fill_(den == 0, torch.inf)  # rows that saw no key become -inf
        for _, c in parts:
            c.most = 80.0  # e^x / den may exceed 1 if a state that does not come from keys has z < 1
        h = torch.empty_like(den)
        for at, c in [] if causal else parts:
            c.load_keys(at, k, v, real)
            T, top = c.absorb(T, top, c.k, c.v)
        for at, c in parts:
            i = slice(at, at + len(c))
            h[:, :, i] = (g[:, :, i].to(h.dtype) * o[:, :, i]).sum(-1) - den[:, :, i] * dden[:, :, i]
            c.load_queries(at, q, r, less, g, h)
            c.load_runs(at, run)
            store_exponential_chunk(dq, at, c.read(top, c.q, c.before).mul_(torch.bmm(c.g, T.mT)))
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
                store_exponential_chunk(dq, at, c.dq)
            store_exponential_chunk(dk, at, c.dk)
            store_exponential_chunk(dv, at, dv_[..., :-1])
        U.mul_(exponential_chunk_(_pack(S, z, m)[1] + peak, 80.0).mT)
        return dq, dk, dv, *_unpack(U, S)


def _pack(S: Tensor, z: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """A state as (G, D, E + 1) and (G, 1, D)."""
    return torch.cat((S, z.unsqueeze(-1)), -1).flatten(0, 1), m.flatten(0, 1).unsqueeze(1).clamp(min=FLOOR)


def _unpack(T: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """S and z again."""
    T = T.unflatten(0, like.shape[:2])
    return T[..., :-1].clone(), T[..., -1].clone()


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, S: Tensor, z: Tensor, m: Tensor, causal: bool
) -> Outputs:
    den, r = m.new_empty(q.shape[:3]), m.new_empty(q.shape[:3])
    return torch.empty_like(v), den, r, S.new_empty(S.shape), z.new_empty(z.shape), m.new_empty(m.shape)


def _backward_fake(
    g: Tensor, dden: Tensor, dS: Tensor, dz: Tensor, q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe,
    S: Tensor, z: Tensor, m: Tensor, causal: bool, o: Tensor, den: Tensor, r: Tensor, m_last: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    return dq, dk, dv, S.new_empty(S.shape), z.new_empty(z.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    *tensors, ctx.causal = inputs
    o, den, r, _, _, m = output
    ctx.save_for_backward(*tensors, o, den, r, m)


def _gradients(ctx: Any, *gradients: Tensor) -> tuple[Maybe, ...]:
    g, dden, _, dS, dz, _ = gradients
    saved = ctx.saved_tensors  # read once: activation checkpointing hands out each tensor only once
    inputs, outputs = saved[:8], saved[8:]
    dq, dk, dv, dS, dz = _backward(g, dden, dS, dz, *inputs, ctx.causal, *outputs)
    return dq, dk, dv, None, None, dS, dz, None, None


_backward = CustomOp("exp_attention_backward", _backward_loop, _backward_fake)
_forward = CustomOp("exp_attention", _forward_loop, _forward_fake, (_save, _gradients))
