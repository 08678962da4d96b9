"""Causal linear attention in PyTorch: a loop over chunks that keeps a state and the scores of one chunk in cache.

The compiler sees one custom op. The backward pass recomputes the states S (D x E), so that only the inputs are saved.
M7-M9 of docs/math.md.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from linnet.ops.custom_op import CustomOp
from linnet.ops.memory import Maybe
from linnet.ops.precision import EPS, accumulator_precision, keep_precision

CHUNK = 64


class _Chunk(NamedTuple):
    """The weights that masks, segments or decay give to the parts of one chunk of C tokens; None: all are 1."""

    inside: Maybe = None  # (BH, C, C): weight of key s for query t; None: the plain triangle
    read: Maybe = None  # (BH, C, 1): weight of the state for query t
    write: Maybe = None  # (BH, C, 1): weight of key s in the next state
    keep: Maybe = None  # (BH, 1, 1): weight of the old state in the next


def _weights(q: Tensor, run: Maybe, time: Maybe, log_decay: Maybe, strict: bool) -> list[_Chunk]:
    """The chunks of a row in order."""
    B, H, N, _ = q.shape
    if run is None and log_decay is None:
        return [_Chunk()] * -(-N // CHUNK)
    dtype, chunks = accumulator_precision(q.dtype), []
    for c in range(0, N, CHUNK):
        tokens = slice(c, min(c + CHUNK, N))
        one = torch.ones(1, 1, tokens.stop - c, dtype=dtype, device=q.device)
        inside, read, write, keep = one[..., None] * one[:, :, None], one, one, one[:, :, :1]  # (B, H, ...)
        if log_decay is not None and time is not None:
            rate = log_decay.to(dtype)[:, None]  # (H, 1)
            p = time[:, None, tokens].to(dtype)  # (B, 1, C)
            before, end = (time[:, None, c - 1 : c].to(dtype) if c else p[:, :, :1] * 0 - 1), p[:, :, -1:]
            inside = torch.exp(rate[..., None] * (p[..., :, None] - p[..., None, :]).clamp(min=0))
            read = torch.exp(rate * (p - before).clamp(min=0))
            write = torch.exp(rate * (end - p).clamp(min=0))
            keep = torch.exp(rate * (end - before).clamp(min=0))
        if run is not None:
            r = run[:, None, tokens]
            before, end = run[:, None, max(c - 1, 0) : max(c, 1)], r[:, :, -1:]
            inside = inside * (r[..., :, None] == r[..., None, :])
            read, write, keep = read * (r == before), write * (r == end), keep * (end == before)
        inside = inside.tril(-1 if strict else 0)
        parts = inside, read[..., None], write[..., None], keep[..., None]
        chunks.append(_Chunk(*(x.expand(B, H, -1, -1).flatten(0, 1) for x in parts)))
    return chunks


def _slots(x: Tensor) -> tuple[Tensor, ...]:
    """Views of the chunks of x (B,H,N,width), without the axis H where possible: three axes are faster than four."""
    return x.flatten(0, 1).split(CHUNK, 1) if x.is_contiguous() else x.split(CHUNK, 2)


def _parts(x: Tensor, dtype: torch.dtype, real: Maybe = None, back: bool = False) -> Iterable[Tensor]:
    """The chunks of x as (BH, C, width), first to last or last to first; masked keys and values become 0."""
    order = slice(None, None, -1 if back else 1)
    if real is None and x.dtype == dtype and x.is_contiguous():
        return _slots(x)[order]
    masks = [None] * -(-x.shape[2] // CHUNK) if real is None else (~real[:, None, :, None]).split(CHUNK, 2)
    return (_rows(slot.to(dtype), mask) for slot, mask in zip(x.split(CHUNK, 2)[order], masks[order], strict=True))


def _rows(x: Tensor, masked: Maybe) -> Tensor:
    """x (B,H,C,width) as (BH, C, width), 0 where masked."""
    return (x if masked is None else x.masked_fill(masked, 0)).reshape(-1, x.shape[2], x.shape[3])


def _put(slot: Tensor, part: Tensor) -> None:
    """Write a chunk (BH, C, width) to its place."""
    slot.copy_(part if slot.dim() == 3 else part.view(slot.shape))


def _times(x: Tensor, weight: Maybe) -> Tensor:
    return x if weight is None else x * weight


def _triangle(A: Tensor, chunk: _Chunk, strict: bool) -> Tensor:
    """A (BH,C,C), weighted, and exactly 0 where key s is after query t (with `strict`, also at t)."""
    if chunk.inside is None:
        return A.tril_(-1 if strict else 0)
    return A.mul_(chunk.inside).masked_fill_(chunk.inside == 0, 0)  # the fill: an overflowing score times 0 is NaN


def _start(state: Maybe, q: Tensor, *width: int) -> Tensor:
    """A copy of the incoming state, or zeros, as (BH, *width)."""
    dtype = accumulator_precision(q.dtype)
    if state is None:
        return torch.zeros(q.shape[0] * q.shape[1], *width, dtype=dtype, device=q.device)
    return state.to(dtype).reshape(-1, *width).clone()


def _next(S: Tensor, k: Tensor, v: Tensor, chunk: _Chunk) -> Tensor:
    """The state after a chunk: S + sum_s k_s v_s^T."""
    if chunk.keep is None or chunk.write is None:
        return S.baddbmm_(k.mT, v)  # M8
    return torch.baddbmm(S * chunk.keep, (k * chunk.write).mT, v)


def _causal_loop(
    q: Tensor, k: Tensor, v: Tensor, real: Maybe, run: Maybe, time: Maybe, log_decay: Maybe, S0: Maybe, z0: Maybe,
    normalize: bool, strict: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """o (B,H,N,E), its normalizer (B,H,N) or empty, and the state after the last token."""
    (B, H, N, D), E, dtype = q.shape, v.shape[3], accumulator_precision(v.dtype)
    o = torch.empty_like(v)
    den = torch.empty(B, H, N if normalize else 0, dtype=dtype, device=v.device)
    S, z = _start(S0, q, D, E), _start(z0, q, D, 1)
    with keep_precision(v.device):
        chunks, dens, C = _weights(q, run, time, log_decay, strict), den.split(CHUNK, 2), min(N, CHUNK)
        places = S.new_empty(B * H, C, E), S.new_empty(B * H, C, C)  # for every full chunk, so that they stay in cache
        qkv = _parts(q, dtype), _parts(k, dtype, real), _parts(v, dtype, real)
        for i, (chunk, slot, a, b, w) in enumerate(zip(chunks, _slots(o), *qkv, strict=True)):
            old = _times(a, chunk.read)
            to_part, to_A = places if a.shape[1] == C else (None, None)
            past = torch.bmm(old, S, out=to_part) if i or S0 is not None else None  # at the start the state is 0
            A = _triangle(torch.bmm(a, b.mT, out=to_A), chunk, strict)
            part = torch.bmm(A, w, out=to_part) if past is None else past.baddbmm_(A, w)  # M7
            if normalize:
                d = torch.bmm(old, z).add_(A.sum(dim=2, keepdim=True)).clamp_(min=EPS)
                part /= d
                dens[i].copy_(d.view(B, H, -1))
                z = _next(z, b, torch.ones_like(d), chunk)
            _put(slot, part)
            S = _next(S, b, w, chunk)
    return o, den, S.view(B, H, D, E), z.view(B, H, D)


def _causal_fake(q, k, v, real, run, time, log_decay, S0, z0, normalize, strict):  # type: ignore[no-untyped-def]
    (B, H, N, D), E, dtype = q.shape, v.shape[3], accumulator_precision(v.dtype)
    state = v.new_empty(B, H, D, E, dtype=dtype), v.new_empty(B, H, D, dtype=dtype)
    return torch.empty_like(v), v.new_empty(B, H, N if normalize else 0, dtype=dtype), *state


def _backward_loop(
    go: Tensor, gS: Maybe, gz: Maybe, q: Tensor, k: Tensor, v: Tensor, o: Tensor, den: Tensor, real: Maybe, run: Maybe,
    time: Maybe, log_decay: Maybe, S0: Maybe, z0: Maybe, normalize: bool, strict: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, S0 and z0 (M9): a forward pass for q, then a reverse pass for k and v."""
    (B, H, _, D), E, dtype = q.shape, v.shape[3], accumulator_precision(v.dtype)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    chunks = _weights(q, run, time, log_decay, strict)
    above = (o, den) if normalize else None
    with keep_precision(v.device):
        S, z = _start(S0, q, D, E), _start(z0, q, D, 1)
        kv = _parts(k, dtype, real), _parts(v, dtype, real)
        for chunk, slot, b, w, (g, gd) in zip(chunks, _slots(dq), *kv, _upstream(go, above, dtype), strict=True):
            past, P = torch.bmm(g, S.mT), torch.bmm(g, w.mT)
            if gd is not None:
                P += gd
                past.baddbmm_(gd, z.mT)
                z = _next(z, b, torch.ones_like(gd), chunk)
            part = _times(past, chunk.read).baddbmm_(_triangle(P, chunk, strict), b)
            _put(slot, part)
            S = _next(S, b, w, chunk)
        S, z = _start(gS, q, D, E), _start(gz, q, D, 1)
        qkv = _parts(q, dtype, back=True), _parts(k, dtype, real, True), _parts(v, dtype, real, True)
        slots = _slots(dk)[::-1], _slots(dv)[::-1]
        below = zip(chunks[::-1], *slots, *qkv, _upstream(go, above, dtype, back=True), strict=True)
        for chunk, to_k, to_v, a, b, w, (g, gd) in below:
            part, old = _times(torch.bmm(b, S), chunk.write), _times(a, chunk.read)
            A = _triangle(torch.bmm(a, b.mT), chunk, strict)
            _put(to_v, part.baddbmm_(A.mT, g))
            future, P = torch.bmm(w, S.mT), torch.bmm(g, w.mT)
            if gd is not None:
                P += gd
                future += z.mT
                z = _times(z, chunk.keep).baddbmm_(old.mT, gd)
            P = _triangle(P, chunk, strict)
            _put(to_k, _times(future, chunk.write).baddbmm_(P.mT, a))
            S = _times(S, chunk.keep).baddbmm_(old.mT, g)
    if real is not None:
        for dx in (dk, dv):
            dx.masked_fill_(~real[:, None, :, None], 0)
    return dq, dk, dv, S.view(B, H, D, E), z.view(B, H, D)


def _upstream(
    go: Tensor, normalized: tuple[Tensor, Tensor] | None, dtype: torch.dtype, back: bool = False
) -> Iterator[tuple[Tensor, Maybe]]:
    """Chunk by chunk, the gradients of the numerator (BH,C,E) and of the normalizer (BH,C,1), if there is one."""
    if normalized is None:
        yield from ((g, None) for g in _parts(go, dtype, back=back))
        return
    o, den = normalized
    rows = _parts(go, dtype, back=back), _parts(o, dtype, back=back), _parts(den[..., None], dtype, back=back)
    for g, y, d in zip(*rows, strict=True):
        gd = -(g * y).sum(dim=2, keepdim=True) / d
        yield g / d, gd * (d > EPS)


def _backward_fake(go, gS, gz, q, k, v, o, den, real, run, time, log_decay, S0, z0, normalize, strict):  # type: ignore[no-untyped-def]
    (B, H, _, D), E, dtype = q.shape, v.shape[3], accumulator_precision(v.dtype)
    state = v.new_empty(B, H, D, E, dtype=dtype), v.new_empty(B, H, D, dtype=dtype)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), *state


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, real, run, time, log_decay, S0, z0, ctx.normalize, ctx.strict = inputs
    o, den, S, z = output
    ctx.set_materialize_grads(False)
    ends = (S, z) if log_decay is not None else (None, None)
    ctx.save_for_backward(q, k, v, o if ctx.normalize else None, den, real, run, time, log_decay, S0, z0, *ends)


def _backward(ctx, go, gden, gS, gz):  # type: ignore[no-untyped-def]
    q, k, v, o, den, real, run, time, log_decay, S0, z0, S, z = ctx.saved_tensors
    go = torch.zeros_like(v) if go is None else go
    rest = real, run, time, log_decay, S0, z0, ctx.normalize, ctx.strict
    dq, dk, dv, dS, dz = _causal_backward(go, gS, gz, q, k, v, v if o is None else o, den, *rest)
    drate = None
    if ctx.needs_input_grad[6]:  # M9: sum_t p_t (q.dq - k.dk); the incoming state is at -1, the outgoing one at the end
        drate = ((q * dq - k * dk).sum(dim=3, dtype=torch.float64) * time[:, None]).sum(dim=(0, 2))
        for x0, dx0, x1, gx1 in ((S0, dS, S, gS), (z0, dz, z, gz)):
            drate = drate if x0 is None else drate + (x0 * dx0).flatten(2).sum(dim=(0, 2))
            drate = drate if gx1 is None else drate + ((x1 * gx1).flatten(2).sum(dim=2) * time[:, -1:]).sum(dim=0)
        drate = drate.to(log_decay.dtype)
    dS, dz = (None if S0 is None else dS), (None if z0 is None else dz)
    return dq, dk, dv, None, None, None, drate, dS, dz, None, None


_causal_backward = CustomOp("linear_causal_backward", _backward_loop, _backward_fake)
causal_linear = CustomOp("linear_causal", _causal_loop, _causal_fake, (_save, _backward))
