"""Block attention: softmax or ReLA inside non-overlapping blocks of w tokens, linear in the number of tokens.

DiagAttention of TransNormer (arXiv 2210.10340) and the diagonal branch of LLN+Diag (arXiv 2311.13541). Blocks are
counted from the first real token of a row or segment. Without masks, blocks are reshapes. With a key mask, each row is
first shifted to its first real token. With segments, each slice of w queries sees the slices beside it.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from linnet.errors import InputError, unknown_name_error
from linnet.ops import reference
from linnet.ops.backend import choose_backend, cpu_backend_hurdle, cpu_backend_serves
from linnet.ops.hashing import hash_coordinates, hash_stays, new_hashing_seed
from linnet.ops.masks import Layout, check_qkv_for_masks, clear_masked, layout_of_masks
from linnet.ops.precision import accumulator_precision, keep_precision
from linnet.ops.rules import BlockRule

KINDS = ("softmax", "rela")
LARGEST = 1024  # tokens per block that the CPU kernels take
LONGEST = 8192  # tokens up to which they beat torch's fused kernel, with dropout or a mask


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
    """Attention of q, k (B,H,N,D) over v (B,H,N,E) inside blocks of `block` tokens -> (B,H,N,E).

    `kind` is "softmax" or "rela" (the ReLU of the scores, without a normalizer); scores are q.k times `scale`, by
    default D^-1/2. The last block may be shorter; a query that sees no real key gives zeros.
    """
    B, _, N = check_qkv_for_masks(q, k, v)
    if kind not in KINDS:
        raise unknown_name_error("kind", kind, KINDS)
    if not isinstance(causal, bool):
        raise InputError(f"causal is {causal!r}: it must be True or False")
    if not isinstance(block, int) or isinstance(block, bool) or block < 1:
        raise InputError(f"block is {block!r}: it must be a whole number of at least 1")
    if scale is not None and (not isinstance(scale, int | float) or isinstance(scale, bool)):
        raise InputError(f"scale is {scale!r}: it must be a number or None")
    rule = BlockRule(kind, causal, q.shape[-1] ** -0.5 if scale is None else float(scale))
    return attend_in_blocks(q, k, v, layout_of_masks(B, N, key_mask, segments, v.device), block, rule, backend)


def attend_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, block: int, rule: BlockRule, backend: str | None = None
) -> Tensor:
    """`block_attention` of checked tensors from their layout, without dropout."""
    large = f"block is {block}, kernels take up to {LARGEST}" if min(block, q.shape[2]) > LARGEST else ""
    name = choose_backend("block_attention", tuple(BACKENDS), backend, large or cpu_backend_hurdle(q, v))
    return BACKENDS[name](q, k, v, where, block, rule)


def attend_in_blocks_dropping(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, block: int, rule: BlockRule
) -> Tensor | None:
    """`attend_in_blocks` with dropout and in long blocks, on the CPU kernels; None where they cannot run.

    torch's generator decides which weights are dropped.
    """
    return _cpu(q, k, v, where, block, rule) if min(block, q.shape[2]) <= LONGEST and cpu_backend_serves(q, v) else None


def _cpu(q: Tensor, k: Tensor, v: Tensor, where: Layout, block: int, rule: BlockRule) -> Tensor:
    from linnet.ops.cpu import block as kernels

    return kernels.cpu_block_attention(q, k, v, where, block, rule)


def attend_in_blocks_torch(q: Tensor, k: Tensor, v: Tensor, where: Layout, block: int, rule: BlockRule) -> Tensor:
    """In PyTorch; the rule may have dropout."""
    k, v = clear_masked(where.real, k, v)
    if rule.dropout and v.device.type == "cpu":
        rule = rule._replace(seed=new_hashing_seed(v.device))
    with keep_precision(v.device):
        if where.run is not None:
            return attend_given_blocks(q, k, v, _block_ids(where, block), where.real, block, rule)
        if where.real is None:
            return _aligned(q, k, v, None, block, rule, torch.arange(q.shape[2], device=q.device)[None])
        return _shifted(q, k, v, where.real, block, rule)


BACKENDS = {"reference": reference.reference_block, "torch": attend_in_blocks_torch, "cpu": _cpu}


def _block_ids(where: Layout, block: int) -> Tensor:
    """(B, N) numbers that are equal for two tokens of one run and one block."""
    own = where.position // block
    return own if where.run is None else where.run * 2**32 + own


def block_kernel_ids(where: Layout, block: int, B: int) -> Tensor | None:
    """`block_ids` for the kernels; None where blocks begin at the first token of every row."""
    return None if where.real is None and where.run is None else _block_ids(where, block).expand(B, -1)


def dense_block(
    q: Tensor, k: Tensor, v: Tensor, see: Tensor | None, rule: BlockRule, at: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Attention of (..., T, D) queries over (..., K, D) keys where `see` (..., T, K) allows; blind rows give zeros.

    `at` are the tokens' places in their rows, (B, ..., T) and (B, ..., K), which decide what is dropped; None: all.
    """
    if rule.dropout and v.device.type == "cpu":
        return _dropped(q, k, v, see, rule, at)
    if rule.kind == "rela":
        wide = accumulator_precision(v.dtype)
        A = q.to(wide) @ k.to(wide).mT * rule.scale
        A = A if see is None else torch.where(see, A, 0)
        A = (A.tril() if rule.causal else A).relu()  # M6
        return (F.dropout(A, rule.dropout) @ v.to(wide)).to(v.dtype)
    if q.dim() == 5:  # torch's fused kernel needs four axes
        see = None if see is None else see.expand(*q.shape[:3], -1, -1).flatten(1, 2)
        o = dense_block(q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2), see, rule)
        return o.unflatten(1, q.shape[1:3])
    if see is None:
        return F.scaled_dot_product_attention(  # M5
            q, k, v, is_causal=rule.causal, scale=rule.scale, dropout_p=rule.dropout
        )
    see = see.tril() if rule.causal else see
    blind = ~see.any(dim=-1, keepdim=True)
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=see | blind, scale=rule.scale, dropout_p=rule.dropout)
    return o.masked_fill(blind, 0)


def _dropped(
    q: Tensor, k: Tensor, v: Tensor, see: Tensor | None, rule: BlockRule, at: tuple[Tensor, Tensor] | None
) -> Tensor:
    """`dense_block` with the dropout of the CPU kernels: the hash of its head, query and key decides about a weight."""
    wide, T, K = accumulator_precision(v.dtype), q.shape[-2], k.shape[-2]
    see = torch.ones(T, K, dtype=torch.bool, device=q.device) if see is None else see
    see = see.tril() if rule.causal else see
    A = q.to(wide) @ k.to(wide).mT * rule.scale
    if rule.kind == "rela":
        A = torch.where(see, A, 0).relu()  # M6
    else:
        blind = ~see.any(dim=-1, keepdim=True)
        A = A.masked_fill(~(see | blind), -torch.inf).softmax(dim=-1).masked_fill(blind, 0)  # M5
    heads = torch.arange(q.shape[0] * q.shape[1], device=q.device).view(*q.shape[:2], *(1,) * (q.dim() - 2))
    rows, columns = at or (torch.arange(n, device=q.device)[None] for n in (T, K))
    seed = new_hashing_seed(q.device) if rule.seed is None else rule.seed
    stay = hash_stays(
        hash_coordinates(seed, heads, rows[:, None, ..., None]), columns[:, None, ..., None, :], rule.dropout
    )
    return (torch.where(stay, A * (1 / (1 - rule.dropout)), 0) @ v.to(wide)).to(v.dtype)


def _aligned(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, block: int, rule: BlockRule, place: Tensor
) -> Tensor:
    """Blocks that start at token 0 of every row: full blocks by a reshape, then the shorter rest.

    `place` (B,N), or (1,N), is where the tokens were before rows were rotated.
    """
    N = q.shape[2]
    whole = N - N % block
    parts = []
    for tokens, w in ((slice(0, whole), block), (slice(whole, N), N - whole)):
        if tokens.start == tokens.stop:
            continue
        a, b, c = (x[:, :, tokens].unflatten(2, (-1, w)) for x in (q, k, v))  # (B, H, N/w, w, .)
        see = None if real is None else real[:, None, tokens].unflatten(2, (-1, w))[..., None, :]  # (B, 1, N/w, 1, w)
        see = None if see is None else see.expand(-1, -1, -1, w, -1)
        at = place[:, tokens].unflatten(1, (-1, w))
        parts.append(dense_block(a, b, c, see, rule, (at, at)).flatten(2, 3))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _shifted(q: Tensor, k: Tensor, v: Tensor, real: Tensor, block: int, rule: BlockRule) -> Tensor:
    """With a key mask: rotate every row so that its first real token comes first, attend, rotate back."""
    there, back = block_turns(real)
    a, b, c = (pick_block_tokens(x, there) for x in (q, k, v))
    o = pick_block_tokens(_aligned(a, b, c, real.gather(1, there), block, rule, there), back)
    before = real.cumsum(dim=1) == 0  # the padding before the first real token, which was moved to the end
    return o.masked_fill(before[:, None, :, None], 0)


def block_turns(real: Tensor) -> tuple[Tensor, Tensor]:
    """Indices (B,N) that bring the first real token of each row to the front, and back."""
    N = real.shape[1]
    index = torch.arange(N, device=real.device)
    first = torch.where(real, index, N).amin(dim=1, keepdim=True)  # (B, 1)
    return (index + first) % N, (index - first) % N


def pick_block_tokens(x: Tensor, index: Tensor) -> Tensor:
    """Tokens of x (B,H,N,D) by index (B,N)."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def attend_given_blocks(
    q: Tensor, k: Tensor, v: Tensor, ids: Tensor, real: Tensor | None, block: int, rule: BlockRule
) -> Tensor:
    """Attention among neighbors with equal block ids (B,N), each block contiguous and at most `block` tokens long.

    Wherever blocks start, the keys of a query lie less than `block` tokens away: for a slice of w queries, in its own
    slice and the one on either side (causal: before).
    """
    N = q.shape[2]
    block = min(block, N)
    extra = -N % block
    real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    q, k, v = (F.pad(x, (0, 0, 0, extra)).unflatten(2, (-1, block)) for x in (q, k, v))  # (B, H, n, w, .)
    ids, real = (F.pad(x, (0, extra), value=fill).unflatten(1, (-1, block)) for x, fill in ((ids, -1), (real, False)))
    order = torch.arange(N + extra, device=ids.device).view(1, -1, block)
    sides = (-1, 0) if rule.causal else (-1, 0, 1)

    def beside(x: Tensor, dim: int, fill: float) -> Tensor:
        """Each slice joined with its neighbors along the token axis `dim + 1`."""
        n = x.shape[dim]
        edge = torch.full_like(x.narrow(dim, 0, 1), fill)
        row = torch.cat([edge, x, edge], dim=dim)
        return torch.cat([row.narrow(dim, 1 + side, n) for side in sides], dim=dim + 1)

    see = (ids[..., :, None] == beside(ids, 1, -1)[..., None, :]) & beside(real, 1, False)[..., None, :]
    at = order, beside(order, 1, -1)
    if rule.causal:
        see = see & (order[..., :, None] >= at[1][..., None, :])
    o = dense_block(
        q, beside(k, 2, 0), beside(v, 2, 0), see[:, None], rule._replace(causal=False), at
    )  # (B, H, n, w, E)
    return o.flatten(2, 3)[:, :, :N]
