"""The dense definition of every op: quadratic, and written to be read next to the equations of docs/math.md."""

from typing import Any

import torch
from torch import Tensor

from linnet.ops.masks import (
    Layout,
    attend_with_masks,
    check_qkv_for_masks,
    layout_of_masks,
    masked_clock,
    visible_mask,
)
from linnet.ops.precision import EPS, FLOOR, State, accumulator_precision
from linnet.ops.rules import BlockRule, ExpRule, LinearRule


def reference_linear_weights(
    phi_q: Tensor, phi_k: Tensor, where: Layout, causal: bool, log_decay: Tensor | None = None
) -> Tensor:
    """A_ts = phi_q_t . phi_k_s, times lambda^(t-s), where s is visible from t: (B,H,N,N)."""
    A = phi_q @ phi_k.mT  # M1
    if log_decay is not None:
        p = where.position.expand(phi_q.shape[0], -1).to(A.dtype)  # (B, N)
        gap = (p[:, None, :, None] - p[:, None, None, :]).clamp(min=0)
        A = A * torch.exp(log_decay.to(A.dtype).clamp(min=FLOOR)[:, None, None] * gap)
    return torch.where(visible_mask(where, causal), A, 0)


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
    """o_t = sum_s A_ts v_s, divided by sum_s A_ts where `normalize`."""
    rule = LinearRule(causal, normalize, log_decay=log_decay)

    def attend(q: Tensor, where: Layout) -> "tuple[Tensor, State]":  # quoted: the compiler cannot subscript it
        return reference_linear(q, phi_k, v, where, rule, state)

    return attend_with_masks(attend, phi_q, phi_k, v, causal, key_mask, segments, return_state)


def reference_linear(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: LinearRule, state: State | None
) -> tuple[Tensor, State]:
    """`linear_attention` from a layout, with its state."""
    (B, H, N, _), dtype = k.shape, v.dtype
    log_decay, normalize = rule.log_decay, rule.normalize
    q, k, v = (x.to(accumulator_precision(dtype)) for x in (q, k, v))
    A = reference_linear_weights(q, k, where, rule.causal, log_decay)
    o = A @ v  # M1
    z = A.sum(dim=-1, keepdim=True)
    p = masked_clock(where, B).to(A.dtype)  # (B, N)
    last = p[:, -1]
    rate = torch.zeros(H, device=v.device) if log_decay is None else log_decay.clamp(min=FLOOR)
    rate = rate.to(A.dtype)
    run = torch.zeros(B, N, dtype=torch.int64, device=v.device) if where.run is None else where.run
    if state is not None:  # the state is at position -1 of the first run
        read = q
        if q.shape[2] == N:  # queries of another length read the whole state
            first = (run == run[:, :1])[:, None, :, None]
            read = q * torch.exp(rate[:, None] * (p[:, None] + 1))[..., None] * first
        o = o + read @ state[0].to(A.dtype)
        if normalize:
            z = z + read @ state[1].to(A.dtype)[..., None]
    o = (o / z.clamp(min=EPS) if normalize else o).to(dtype)
    real = torch.ones(B, N, dtype=torch.bool, device=v.device) if where.real is None else where.real
    ends = (real & (run == run[:, -1:]))[:, None]
    weight = torch.exp(rate[:, None] * (last[:, None] - p).clamp(min=0)[:, None]) * ends  # (B, H, N)
    k = k * weight[..., None]
    kept: State = (k.mT @ v, k.sum(dim=2)) if normalize else (k.mT @ v,)
    if state is not None:
        carried = torch.exp(rate * (last[:, None] + 1)) * (run[:, :1] == run[:, -1:])  # (B, H)
        shaped = carried[..., None, None], carried[..., None]
        kept = tuple(new + old * keep for new, old, keep in zip(kept, state, shaped, strict=False))
    return o, kept


def reference_block_weights(
    q: Tensor, k: Tensor, where: Layout, block: int, kind: str, causal: bool, scale: float | None = None
) -> Tensor:
    """Softmax or ReLU of q_t . k_s * scale among the visible keys of t's own block: (B,H,N,N).

    For queries of another sequence all keys are one block: (B,H,T,N).
    """
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    see = visible_mask(where, causal)
    if where.queries is None:
        own = where.position // block
        same = own[..., :, None] == own[..., None, :]  # (N, N) or (B, N, N)
        see = see & (same[:, None] if same.dim() == 3 else same)
    if kind == "rela":
        return torch.where(see, scores, 0).relu()  # M6
    blind = ~see.any(dim=-1, keepdim=True)  # a row that sees nothing gives zeros: its softmax would be 0/0
    A = torch.where(see | blind, scores, -torch.inf).softmax(dim=-1)  # M5
    return torch.where(blind, 0, A)


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: int = 64,
    kind: str = "softmax",
    causal: bool = True,
    key_mask: Tensor | None = None,
    segments: Tensor | None = None,
    scale: float | None = None,
    backend: str | None = None,
) -> Tensor:
    """Softmax or ReLA attention inside non-overlapping blocks."""
    B, _, N = check_qkv_for_masks(q, k, v)
    rule = BlockRule(kind, causal, q.shape[-1] ** -0.5 if scale is None else scale)
    return reference_block(q, k, v, layout_of_masks(B, N, key_mask, segments, v.device), block, rule)


def reference_block(q: Tensor, k: Tensor, v: Tensor, where: Layout, block: int, rule: BlockRule) -> Tensor:
    """`block_attention` from a layout."""
    wide = accumulator_precision(v.dtype)
    A = reference_block_weights(q.to(wide), k.to(wide), where, block, rule.kind, rule.causal, rule.scale)
    return (A @ v.to(wide)).to(v.dtype)


def _exp_scores(log_q: Tensor, log_k: Tensor, see: Tensor, floor: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """sum_c e^(q_tc + k_sc - r_t) where s is visible (B,H,N,N), and r_t (B,H,N,1), the row's largest exponent.

    r cancels in every quotient, is at least `floor`, and carries no gradient.
    """

    def exponent(c: int) -> Tensor:
        return torch.where(see, log_q[..., c, None] + log_k[..., None, :, c], -torch.inf)

    r = log_q.new_full(log_q.shape[:3], FLOOR) if floor is None else floor.detach()  # a row may see nothing
    with torch.no_grad():
        for c in range(log_q.shape[-1]):
            r = torch.maximum(r, exponent(c).amax(dim=-1))
    r = r.clamp(min=FLOOR)[..., None]
    A = torch.exp(exponent(0) - r)
    for c in range(1, log_q.shape[-1]):  # one at a time: all at once would be D matrices
        A = A + torch.exp(exponent(c) - r)  # M11
    return A, r


def reference_exp_weights(log_q: Tensor, log_k: Tensor, where: Layout, causal: bool) -> Tensor:
    """A_ts = sum_c e^(q_tc + k_sc), divided by its sum over the visible s: (B,H,N,N)."""
    A, _ = _exp_scores(log_q, log_k, visible_mask(where, causal))
    total = A.sum(dim=-1, keepdim=True)
    return A / total.masked_fill(total == 0, 1)  # M11


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
    """o_t = sum_s A_ts v_s / sum_s A_ts with A_ts = sum_c e^(q_tc + k_sc).

    A state (S, z, m) stands for past keys: S_c = sum_s e^(k_sc - m_c) v_s, z_c the same without v, m_c the largest key.
    """

    def attend(q: Tensor, where: Layout) -> "tuple[Tensor, State]":  # quoted: the compiler cannot subscript it
        return reference_exp(q, log_k, v, where, ExpRule(causal), state)

    return attend_with_masks(attend, log_q, log_k, v, causal, key_mask, segments, return_state)


def reference_exp(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: ExpRule, state: State | None
) -> tuple[Tensor, State]:
    """`exp_attention` from a layout, with its state."""
    (B, H, N, D), dtype = k.shape, v.dtype
    q, k, v = (x.to(accumulator_precision(dtype)) for x in (q, k, v))
    run = torch.zeros(B, N, dtype=torch.int64, device=v.device) if where.run is None else where.run
    if state is None:
        empty = v.new_zeros(B, H, D)
        state = empty[..., None] * v[:, :, :1], empty, empty + FLOOR
    S, z, m = state
    past = q + m[:, :, None]  # (B, H, N, D)
    if where.run is not None:
        past = torch.where((run == run[:, :1])[:, None, :, None], past, -torch.inf)
    A, r = _exp_scores(q, k, visible_mask(where, rule.causal), past.amax(dim=-1))
    W = torch.exp(past - r)  # the weight of the state's channels
    total = A.sum(dim=-1, keepdim=True) + W @ z[..., None]
    o = ((A @ v + W @ S) / total.masked_fill(total == 0, 1)).to(dtype)  # M11
    ends = run == run[:, -1:] if where.real is None else (run == run[:, -1:]) & where.real
    k = torch.where(ends[:, None, :, None], k, -torch.inf)
    m = torch.where((run[:, :1] == run[:, -1:])[..., None], m, -torch.inf)
    top = torch.maximum(m, k.amax(dim=2)).clamp(min=FLOOR).detach()
    keys, old = torch.exp(k - top[:, :, None]), torch.exp(m - top)  # (B, H, N, D), (B, H, D)
    return o, (keys.mT @ v + old[..., None] * S, keys.sum(dim=2) + old * z, top)  # M12
