"""The dense definition of every op: quadratic, and written to be read beside the equations of docs/math.md."""

from typing import Any

import torch
from torch import Tensor

from linnet.ops.layout import Layout, check_qkv, clock, layout, visible

State = tuple[Tensor, ...]


def linear_weights(
    phi_q: Tensor, phi_k: Tensor, where: Layout, causal: bool, log_decay: Tensor | None = None
) -> Tensor:
    """A_ts = phi_q_t . phi_k_s, times lambda^(t-s), where s is visible from t: (B,H,N,N)."""
    A = phi_q @ phi_k.mT  # M1
    if log_decay is not None:
        p = where.position.expand(phi_q.shape[0], -1).to(A.dtype)  # (B, N)
        gap = (p[:, None, :, None] - p[:, None, None, :]).clamp(min=0)
        A = A * torch.exp(log_decay.to(A.dtype)[:, None, None] * gap)
    return torch.where(visible(where, causal), A, 0)


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
    B, H, N = check_qkv(phi_q, phi_k, v)
    where = layout(B, N, key_mask, segments, v.device)
    A = linear_weights(phi_q, phi_k, where, causal, log_decay)
    o = A @ v  # M1
    z = A.sum(dim=-1, keepdim=True)
    p = clock(where, B).to(A.dtype)  # (B, N)
    last = p[:, -1]
    rate = torch.zeros(H, dtype=A.dtype, device=v.device) if log_decay is None else log_decay.to(A.dtype)
    run = torch.zeros(B, N, dtype=torch.int64, device=v.device) if where.run is None else where.run
    if state is not None:  # the state stands at position -1 of the first run
        first = (run == run[:, :1])[:, None, :, None]
        read = phi_q * torch.exp(rate[:, None] * (p[:, None] + 1))[..., None] * first
        o = o + read @ state[0].to(A.dtype)
        if normalize:
            z = z + read @ state[1].to(A.dtype)[..., None]
    o = o / z.clamp(min=1e-6) if normalize else o
    if not return_state:
        return o
    real = torch.ones(B, N, dtype=torch.bool, device=v.device) if where.real is None else where.real
    ends = (real & (run == run[:, -1:]))[:, None]
    weight = torch.exp(rate[:, None] * (last[:, None] - p).clamp(min=0)[:, None]) * ends  # (B, H, N)
    k = phi_k * weight[..., None]
    kept: State = (k.mT @ v, k.sum(dim=2)) if normalize else (k.mT @ v,)
    if state is not None:
        carried = torch.exp(rate * (last[:, None] + 1)) * (run[:, :1] == run[:, -1:])  # (B, H)
        kept = tuple(new + old * carried.reshape(B, H, *[1] * (old.dim() - 2)) for new, old in zip(kept, state, strict=True))
    return o, kept


def block_weights(
    q: Tensor, k: Tensor, where: Layout, block: int, kind: str, causal: bool, scale: float | None = None
) -> Tensor:
    """Softmax or ReLU of q_t . k_s * scale among the visible keys of t's own block: (B,H,N,N)."""
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    own = where.position // block
    same = own[..., :, None] == own[..., None, :]  # (N, N) or (B, N, N)
    see = visible(where, causal) & (same[:, None] if same.dim() == 3 else same)
    if kind == "rela":
        return torch.where(see, scores, 0).relu()  # M6
    blind = ~see.any(dim=-1, keepdim=True)  # a row that sees nothing gives zeros: a softmax over nothing is 0/0
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
    B, _, N = check_qkv(q, k, v)
    where = layout(B, N, key_mask, segments, v.device)
    return block_weights(q, k, where, block, kind, causal, scale) @ v
