"""The collectives of one sequence over many ranks, each with its own backward pass, and a count of what they send.

The gradient of a gathered state is the sum of its gradients over ranks; that of a tensor which moves to the next rank
comes back from there. All ranks build the same graph, so that their backward passes meet in the same order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from linnet.distributed.sequence_layout import layout_of_sequence
from linnet.errors import InputError
from linnet.ops.cut import CutLayout


@dataclass
class Traffic:
    """Bytes that this rank received, and the number of collectives, since the last `clear`."""

    forward: int = 0
    backward: int = 0
    masks: int = 0  # bytes about lengths, masks and segments, once per call of a model
    calls: int = 0

    def clear(self) -> None:
        """Count from zero again."""
        self.forward = self.backward = self.masks = self.calls = 0


class SequenceRanks:
    """A process group whose ranks hold one sequence, in the order of their slices."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "no process group exists: start under torchrun and call torch.distributed.init_process_group"
            )
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.traffic = Traffic()
        self._kept: tuple[Tensor | None, Tensor | None, CutLayout] | None = None  # of a model that is running

    def __deepcopy__(self, memo: dict[int, Any]) -> "SequenceRanks":
        return self  # a process group has no copy

    def gather(self, x: Tensor) -> Tensor:
        """x of every rank, (W, ...), with gradients."""
        out: Tensor = _Gather.apply(x, self)
        return out

    def shift(self, x: Tensor, by: int) -> Tensor:
        """x of the rank `by` places earlier, with gradients; zeros where there is none."""
        out: Tensor = _Shift.apply(x, self, by)
        return out

    def gather_counts(self, x: Tensor) -> Tensor:
        """Integers about the layout of every rank, (W, ...)."""
        out = x.new_empty(self.size, *x.shape)
        dist.all_gather(list(out.unbind(0)), x.contiguous(), group=self.group)
        self.traffic.masks += (self.size - 1) * x.numel() * x.element_size()
        self.traffic.calls += 1
        return out

    def layout(
        self, B: int, N: int, key_mask: Tensor | None, segments: Tensor | None, device: torch.device
    ) -> CutLayout:
        """Where this rank's tokens stand in the whole sequence."""
        if self._kept is not None and self._kept[0] is key_mask and self._kept[1] is segments:
            return self._kept[2]
        return layout_of_sequence(self, B, N, key_mask, segments, device)

    @contextmanager
    def sharing(
        self, B: int, N: int, key_mask: Tensor | None, segments: Tensor | None, device: torch.device
    ) -> Iterator[CutLayout]:
        """A call of a model, whose layers all have one layout."""
        where = self.layout(B, N, key_mask, segments, device)
        self._kept = key_mask, segments, where
        try:
            yield where
        finally:
            self._kept = None


class _Gather(torch.autograd.Function):
    """(...) of each rank -> (W, ...) on all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: SequenceRanks) -> Tensor:
        ctx.ranks = ranks
        x = x.contiguous()
        out = x.new_empty(ranks.size, *x.shape)
        dist.all_gather(list(out.unbind(0)), x, group=ranks.group)
        ranks.traffic.forward += (ranks.size - 1) * x.numel() * x.element_size()
        ranks.traffic.calls += 1
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ranks, g = ctx.ranks, gradients[0].contiguous()
        dx = g.new_empty(g.shape[1:])
        dist.reduce_scatter(dx, list(g.unbind(0)), group=ranks.group)
        ranks.traffic.backward += (ranks.size - 1) * dx.numel() * dx.element_size()
        ranks.traffic.calls += 1
        return dx, None


class _Shift(torch.autograd.Function):
    """x of rank r goes to rank r + by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: SequenceRanks, by: int) -> Tensor:
        ctx.ranks, ctx.by = ranks, by
        out, received = _exchange(x, ranks, by)
        ranks.traffic.forward += received
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        dx, received = _exchange(gradients[0], ctx.ranks, -ctx.by)
        ctx.ranks.traffic.backward += received
        return dx, None, None


def _exchange(x: Tensor, ranks: SequenceRanks, by: int) -> tuple[Tensor, int]:
    """x of the rank `by` places earlier or zeros, and the bytes received."""
    x, out = x.contiguous(), torch.zeros_like(x, memory_format=torch.contiguous_format)
    there, here = ranks.rank + by, ranks.rank - by
    moves = []
    if 0 <= there < ranks.size:
        moves.append(dist.P2POp(dist.isend, x, group=ranks.group, group_peer=there))
    if 0 <= here < ranks.size:
        moves.append(dist.P2POp(dist.irecv, out, group=ranks.group, group_peer=here))
    for work in dist.batch_isend_irecv(moves) if moves else []:
        work.wait()
    ranks.traffic.calls += 1
    return out, out.numel() * out.element_size() if 0 <= here < ranks.size else 0
