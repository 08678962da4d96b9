"""One sequence cut over ranks: each rank has a slice of the tokens, and only sums over tokens cross (LASP-2).

A run of tokens that lies on several ranks has a part on each. A rank gathers the state of every rank's last run, and
where later tokens count that of its first run, once; it then adds those that belong to its own first and last run
(arXiv 2502.07563). Blocks that a cut splits borrow the tokens next to the cut.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from linnet.errors import UnsupportedError
from linnet.ops.exponential import absorb_exponential_keys, attend_exponentially
from linnet.ops.linear import attend_linearly
from linnet.ops.masks import Layout, clear_masked
from linnet.ops.precision import EPS, FLOOR, State, accumulator_precision, keep_precision
from linnet.ops.rules import BlockRule, ExpRule, LinearRule

BlockAttention = Callable[[Tensor, Tensor, Tensor, Layout, int, BlockRule], Tensor]


class CutRanks(Protocol):
    """The ranks that share a sequence, in its order; differentiable."""

    rank: int
    size: int

    def gather(self, x: Tensor) -> Tensor:
        """x of every rank, (W, ...)."""
        ...

    def shift(self, x: Tensor, by: int) -> Tensor:
        """x of the rank `by` places earlier; zeros where there is none."""
        ...

    def sharing(
        self, B: int, N: int, key_mask: Tensor | None, segments: Tensor | None, device: torch.device
    ) -> AbstractContextManager[Layout]:
        """A context inside which `layout` of these masks is computed once."""
        ...

    def layout(self, B: int, N: int, key_mask: Tensor | None, segments: Tensor | None, device: torch.device) -> Layout:
        """Where this rank's tokens stand in the whole sequence."""
        ...


@dataclass(frozen=True, kw_only=True)
class CutLayout(Layout):
    """The layout of one rank's slice; `position` is that in the whole sequence, `run` counts this rank's runs."""

    ranks: CutRanks
    sizes: tuple[int, ...]  # tokens of every rank
    earlier: Tensor  # (W, B) bool: whose last run is this rank's first run, among earlier ranks
    later: Tensor  # (W, B) bool: whose first run is this rank's last run, among later ranks
    longest: int  # positions of the longest run on any rank

    def in_first(self) -> Tensor | None:
        """The tokens (B,N) of this rank's first run; None: all."""
        return None if self.run is None else self.run == self.run[:, :1]

    def in_last(self) -> Tensor | None:
        """The tokens (B,N) of this rank's last run; None: all."""
        return None if self.run is None else self.run == self.run[:, -1:]


def reals_of_cut(where: CutLayout, inside: Tensor | None) -> Tensor | None:
    """The real tokens (B,N) of those `inside`; None: all tokens."""
    if inside is None or where.real is None:
        return where.real if inside is None else inside
    return inside & where.real


def chosen_in_cut(parts: Tensor, chosen: Tensor) -> Tensor:
    """The sum over ranks of `parts` (W,B,...), of the ranks that are `chosen` (W,B)."""
    return parts.masked_fill(~chosen.view(*chosen.shape, *(1,) * (parts.dim() - 2)), 0).sum(dim=0)


def add_moments_of_cut(where: CutLayout, sums: Tensor, prefix: bool) -> Tensor:
    """`sums` (B,H,N,F) over each token's prefix or run, or (B,H,1,F) over the only one, with what other ranks hold."""
    ends = sums[:, :, -1:] if prefix else torch.cat([sums[:, :, -1:], sums[:, :, :1]], dim=2)
    parts = where.ranks.gather(ends)  # (W, B, H, 1 or 2, F)
    for chosen, inside, at in ((where.earlier, where.in_first(), 0), (where.later, where.in_last(), 1)):
        if prefix and at:
            break
        more = chosen_in_cut(parts[:, :, :, at], chosen)[:, :, None]  # (B, H, 1, F)
        sums = sums + (more if inside is None else torch.where(inside[:, None, :, None], more, 0))
    return sums


def attend_cut_linearly(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: LinearRule, state: State | None = None
) -> tuple[Tensor, State]:
    """`attend_linearly`; where the layout is that of a slice, over the whole sequence, and then without a state."""
    if not isinstance(where, CutLayout):
        return attend_linearly(q, k, v, where, rule, state)
    if rule.log_decay is not None:
        raise UnsupportedError("log_decay is given: a state that fades cannot be cut over ranks")
    wide = accumulator_precision(v.dtype)
    with keep_precision(v.device):
        phi_k = k.to(wide) if rule.features is None else rule.features(k.to(wide)).to(wide)
        x = v.to(wide)
        x = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1) if rule.normalize else x
        both = where.run is not None and not rule.causal
        ends = [where.in_last(), where.in_first()] if both else [where.in_last()]
        parts = where.ranks.gather(torch.stack([_linear_sum(phi_k, x, where, end) for end in ends]))
    chosen = where.earlier if rule.causal or both else where.earlier | where.later
    past = chosen_in_cut(parts[:, 0], chosen)  # (B, H, D, E or E + 1)
    if both:
        later = chosen_in_cut(parts[:, 1], where.later)
        return _linear_in_runs(q, k, x, past, later, where, rule).to(v.dtype), ()
    before = (past[..., :-1].contiguous(), past[..., -1].contiguous()) if rule.normalize else (past,)
    return attend_linearly(q, k, v, where, rule, before)[0], ()


def _linear_sum(phi_k: Tensor, x: Tensor, where: CutLayout, inside: Tensor | None) -> Tensor:
    """The state (B,H,D,E) of the real tokens `inside`."""
    phi_k, x = clear_masked(reals_of_cut(where, inside), phi_k, x)
    return phi_k.mT @ x


def _linear_in_runs(
    q: Tensor, k: Tensor, x: Tensor, past: Tensor, later: Tensor, where: CutLayout, rule: LinearRule
) -> Tensor:
    """Bidirectional with segments: this rank's tokens, the first run's earlier ones and the last run's later ones."""
    q, k = q.to(x.dtype), k.to(x.dtype)
    o = attend_linearly(q, k, x, where, rule._replace(normalize=False))[0]
    with keep_precision(x.device):
        phi_q = q if rule.features is None else rule.features(q).to(x.dtype)
        for part, inside in ((past, where.in_first()), (later, where.in_last())):
            o = o + clear_masked(inside, phi_q)[0] @ part
    return o[..., :-1] / o[..., -1:].clamp(min=EPS) if rule.normalize else o


def attend_cut_exponentially(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, rule: ExpRule, state: State | None = None
) -> tuple[Tensor, State]:
    """`attend_exponentially`; where the layout is that of a slice, over the whole sequence, and without a state."""
    if not isinstance(where, CutLayout):
        return attend_exponentially(q, k, v, where, rule, state)
    if rule.alpha is not None and rule.beta is not None:
        q, k, rule = rule.alpha * q, rule.beta * k, ExpRule(rule.causal)
    both = where.run is not None and not rule.causal
    ends = [where.in_last(), where.in_first()] if both else [where.in_last()]
    with keep_precision(v.device):
        parts = where.ranks.gather(torch.stack([_exponential_sum(k, v, where, end) for end in ends]))
        chosen = where.earlier if rule.causal or both else where.earlier | where.later
        past = merge_exponents_of_cut(parts[:, 0], chosen)
        if not both:
            return attend_exponentially(q, k, v, where, rule, past)[0], ()
        later = merge_exponents_of_cut(parts[:, 1], where.later)
    return _exponential_in_runs(q, k, v, past, later, where, rule), ()


def _exponential_sum(k: Tensor, v: Tensor, where: CutLayout, inside: Tensor | None) -> Tensor:
    """The state of the real tokens `inside`, as S, z and m side by side: (B,H,D,E+2)."""
    S, z, m = absorb_exponential_keys(k, v, reals_of_cut(where, inside))
    return torch.cat([S, z[..., None], m[..., None]], dim=-1)


def merge_exponents_of_cut(parts: Tensor, chosen: Tensor) -> State:
    """S, z and m of the `chosen` (W,B) states, `parts` (W,B,H,D,E+2): relative to the largest key of a channel."""
    out = ~chosen[:, :, None, None]  # (W, B, 1, 1)
    m = parts[..., -1].detach().masked_fill(out, FLOOR)
    top = m.amax(dim=0)  # (B, H, D)
    scale = (m - top).exp().masked_fill(out, 0)
    T = (parts[..., :-1].masked_fill(out[..., None], 0) * scale[..., None]).sum(dim=0)
    return T[..., :-1].contiguous(), T[..., -1].contiguous(), top


def _exponential_in_runs(
    q: Tensor, k: Tensor, v: Tensor, past: State, later: State, where: CutLayout, rule: ExpRule
) -> Tensor:
    """Bidirectional with segments: a state joins its run as D keys, of which key c is e^m_c z_c in channel c alone."""
    D, N = k.shape[3], k.shape[2]
    keys, values, reals = [], [], []
    for S, z, m in (past, later):
        there = z > 0
        log_z = torch.where(there, z, 1).log() + m
        off = ~torch.eye(D, dtype=torch.bool, device=k.device)
        keys.append(torch.diag_embed(log_z.masked_fill(~there, -torch.inf)).masked_fill(off, -torch.inf).to(k.dtype))
        values.append((S / torch.where(there, z, 1)[..., None]).to(v.dtype))
        reals.append(there.any(dim=1))  # (B, D)
    k, v = torch.cat([keys[0], k, keys[1]], dim=2), torch.cat([values[0], v, values[1]], dim=2)
    q = torch.nn.functional.pad(q, (0, 0, D, D))
    run = where.run
    assert run is not None
    run = torch.cat([run[:, :1].expand(-1, D), run, run[:, -1:].expand(-1, D)], dim=1)
    real = torch.cat([reals[0], where.reals(len(q)), reals[1]], dim=1)
    whole = Layout(real, run, torch.arange(N + 2 * D, device=q.device), N + 2 * D)
    return attend_exponentially(q, k, v, whole, rule)[0][:, :, D : D + N]


def attend_blocks_of_cut(
    q: Tensor, k: Tensor, v: Tensor, where: Layout, block: int, rule: BlockRule, attend: BlockAttention
) -> Tensor:
    """`attend`; where a cut may split a block, with the keys and values on its other side."""
    if not isinstance(where, CutLayout) or cut_spares_blocks(where, block):
        return attend(q, k, v, where, block, rule)
    B, N, run = len(q), q.shape[2], where.run
    own = torch.zeros(B, N, dtype=torch.int64, device=q.device) if run is None else run
    counts = torch.stack([own, where.reals(B).to(torch.int64), where.position.expand(B, -1)])  # (3, B, N)
    k, v = clear_masked(where.real, k, v)
    hops = min(-(-(block - 1) // min(where.sizes)), where.ranks.size - 1)
    parts = [(torch.cat([k, v], dim=-1), counts)]
    earlier = 0
    for by in range(1, hops + 1):
        parts.insert(0, _borrowed(*parts[by - 1], where, block, by))
        earlier += parts[0][1].shape[2]
        if not rule.causal:
            parts.append(_borrowed(*parts[by], where, block, -by))
    kv, counts = (torch.cat([part[i] for part in parts], dim=2) for i in range(2))
    k, v = kv.split([k.shape[3], v.shape[3]], dim=-1)
    q = torch.nn.functional.pad(q, (0, 0, earlier, k.shape[2] - earlier - N))
    whole = Layout(counts[1] == 1, counts[0], counts[2], k.shape[2])
    return attend(q, k, v, whole, block, rule)[:, :, earlier : earlier + N]


def cut_spares_blocks(where: CutLayout, block: int) -> bool:
    """Whether every cut lies between two blocks, whatever the tokens are; every rank says the same."""
    if where.real is not None or where.run is not None:
        return block == 1
    starts: Sequence[int] = [sum(where.sizes[:i]) for i in range(1, len(where.sizes))]
    return all(start % block == 0 for start in starts)


def _borrowed(kv: Tensor, counts: Tensor, where: CutLayout, block: int, by: int) -> tuple[Tensor, Tensor]:
    """The keys, values and counts (run, real, position) beside the cut, of the rank `by` places earlier.

    Their runs are numbered as this rank's are; -1 is a run that this rank has no part of.
    """
    last, width, N = by > 0, min(block - 1, max(where.sizes)), kv.shape[2]
    take = min(width, N)
    side = slice(N - take, None) if last else slice(0, take)
    pads = (width - take, 0) if last else (0, width - take)
    edge = counts[0, :, -1:] if last else counts[0, :, :1]
    mine = counts[0, :, :1] if last else counts[0, :, -1:]
    counts = torch.cat([(counts[:1] == edge).to(torch.int64), counts[1:]])[:, :, side]
    kv = where.ranks.shift(torch.nn.functional.pad(kv[:, :, side], (0, 0, *pads)), by)
    counts = where.ranks.shift(torch.nn.functional.pad(counts, pads), by)
    there = where.ranks.rank - by
    if not 0 <= there < where.ranks.size:
        return kv[:, :, :0], counts[:, :, :0]
    sent = min(width, where.sizes[there])
    side = slice(width - sent, None) if last else slice(0, sent)
    kv, counts = kv[:, :, side], counts[:, :, side]
    same = (counts[0] == 1) & (where.earlier if last else where.later)[there][:, None]
    return kv, torch.stack([torch.where(same, mine, -1), counts[1], counts[2]])
