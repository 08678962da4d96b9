"""Where the tokens of one rank stand in the whole sequence: `linnet.ops.masks.layout_of_masks`, cut over ranks.

Masks and segment ids stay on their rank. Ranks exchange a few integers per row: the ids at the ends of a slice, and
the first and last real token of the row and of the runs at those ends.
"""

from typing import Protocol

import torch
from torch import Tensor

from linnet.errors import InputError
from linnet.ops.cut import CutLayout, CutRanks
from linnet.ops.masks import check_mask, check_segments

NONE = 2**62  # the index of a first token that does not exist


class _Ends(CutRanks, Protocol):
    """What the layout needs from the ranks."""

    def gather_counts(self, x: Tensor) -> Tensor: ...


def layout_of_sequence(
    ranks: _Ends, B: int, N: int, key_mask: Tensor | None, segments: Tensor | None, device: torch.device
) -> CutLayout:
    """The layout of this rank's N tokens, or a one-line error on every rank."""
    real = None if key_mask is None else check_mask(key_mask, B, N).to(device)
    ids = None if segments is None else check_segments(segments, B, N).to(device)
    given = ranks.gather_counts(torch.tensor([B, N, real is not None, ids is not None], device=device)).tolist()
    if len({row[0] for row in given}) > 1:
        raise InputError(f"the slices have {_listed(given, 0)} rows: every rank must have the same batch")
    if len({row[3] for row in given}) > 1:
        raise InputError("segments is given on some ranks only: give it on all ranks or on none")
    sizes = tuple(int(row[1]) for row in given)
    first, total = sum(sizes[: ranks.rank]), sum(sizes)
    index = torch.arange(first, first + N, device=device)
    order = torch.arange(ranks.size, device=device)[:, None].expand(-1, B)
    if not any(row[2] or row[3] for row in given):
        earlier, later = order < ranks.rank, order > ranks.rank
        return CutLayout(
            None, None, index, total, ranks=ranks, sizes=sizes, earlier=earlier, later=later, longest=total
        )
    seen = torch.ones(B, N, dtype=torch.bool, device=device) if real is None else real
    run, joined, last = _effective_runs(ranks, index, seen, seen.long() * 0 if ids is None else ids.long(), sizes)
    earlier, later, position = _positions(ranks, index, seen, run, joined, last)
    longest = int(ranks.gather_counts((position.max() + 1)[None]).max())
    masked = seen if any(row[2] for row in given) else None
    return CutLayout(
        masked, None if ids is None else run, position, position[:, -1] + 1,
        ranks=ranks, sizes=sizes, earlier=earlier, later=later, longest=longest,
    )  # fmt: skip


def _listed(given: list[list[int]], field: int) -> str:
    """The list of one number from each rank, for an error message."""
    return ", ".join(str(row[field]) for row in given)


def _extent(seen: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """The first and last index (B,) that is `seen`; NONE and -1 where none is."""
    return torch.where(seen, index, NONE).amin(dim=1), torch.where(seen, index, -1).amax(dim=1)


def _effective_runs(
    ranks: _Ends, index: Tensor, seen: Tensor, ids: Tensor, sizes: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """This rank's runs (B,N) from 0, which cuts (W-1,B) lie inside a run, and the last real token (B,1) of the row.

    A run ends where ids change, but only between the first and the last real token: padding belongs to their runs.
    """
    known = ranks.gather_counts(torch.stack([ids[:, 0], ids[:, -1], *_extent(seen, index)]))  # (W, 4, B)
    first, last = known[:, 2].amin(dim=0)[:, None], known[:, 3].amax(dim=0)[:, None]  # (B, 1)
    change = torch.zeros_like(seen)
    change[:, 1:] = (ids[:, 1:] != ids[:, :-1]) & (first < index[1:]) & (index[1:] <= last)
    starts = torch.tensor(sizes, device=seen.device).cumsum(0)[:-1, None]  # (W-1, 1): the first token after each cut
    inside = (starts > first.T) & (starts <= last.T)
    return change.cumsum(dim=1), (known[:-1, 1] == known[1:, 0]) | ~inside, last


def _positions(
    ranks: _Ends, index: Tensor, seen: Tensor, run: Tensor, joined: Tensor, last: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Which ranks (W,B) hold an earlier part of the first run and a later part of the last, and positions (B,N)."""
    (B, N), W, rank = run.shape, ranks.size, ranks.rank
    in_first, in_last = run == run[:, :1], run == run[:, -1:]
    own = [_extent(seen & inside, index)[0] for inside in (in_first, in_last)]
    head, tail, single = ranks.gather_counts(torch.stack([*own, in_first[:, -1].to(torch.int64)])).unbind(dim=1)
    one = single == 1  # (W, B): the slice is one run
    before, after = torch.zeros_like(one), torch.zeros_like(one)
    reach = torch.ones(B, dtype=torch.bool, device=run.device)
    for other in range(rank - 1, -1, -1):
        reach = reach & joined[other]
        before[other] = reach
        reach = reach & one[other]
    reach = torch.ones_like(reach)
    for other in range(rank + 1, W):
        reach = reach & joined[other - 1]
        after[other] = reach
        reach = reach & one[other]
    earlier, later = (
        torch.where(there, of, NONE).amin(dim=0) for there, of in ((before, tail), (after, head))
    )  # the first real token of the run on other ranks, (B,)
    whole = torch.minimum(earlier, torch.where(one[rank], torch.minimum(own[0], later), own[0]))
    start = torch.full((B, N), NONE, dtype=torch.int64, device=run.device)
    start = start.scatter_reduce(1, run, torch.where(seen, index, NONE), "amin").gather(1, run)
    tail_start = torch.minimum(own[1], later)
    start = torch.where(in_last & ~one[rank][:, None], tail_start[:, None], start)
    start = torch.where(in_first, whole[:, None], start)
    return before, after, (torch.minimum(index, last) - start).clamp(min=0)
