"""Parts of a batch: a few rows of similar length at a time, because a whole batch would be mostly padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linnet.data.lra.sequences import even_sequence_width

if TYPE_CHECKING:
    from torch import Tensor

    from linnet.tasks.base import Batch


def split_batch_by_length(batch: Batch, rows: int) -> list[Batch]:
    """On a CPU, parts of `rows` rows, the shortest first, each cut to its longest row; elsewhere the whole batch."""
    import torch

    ids, real = batch["ids"], batch.get("key_mask")
    if ids.device.type != "cpu" or len(ids) <= rows:
        return [batch]
    extent = torch.full((len(ids),), ids.shape[-1]) if real is None else _extent(real)
    parts = extent.argsort(stable=True).split(rows)
    return [_part(batch, part, even_sequence_width(int(extent[part].max()), ids.shape[-1])) for part in parts]


def _extent(real: Tensor) -> Tensor:
    """The length up to the last real token of each row, or of each pair of rows: (B,), at least 1."""
    import torch

    ends = (real * torch.arange(1, real.shape[-1] + 1)).flatten(1).amax(dim=1)
    return ends.clamp(min=1)


def _part(batch: Batch, rows: Tensor, n: int) -> Batch:
    """These rows of a batch, up to token n, with their labels."""
    import torch

    part, select = {"ids": batch["ids"][rows, ..., :n].contiguous()}, batch.get("select")
    if "key_mask" in batch and not (mask := batch["key_mask"][rows, ..., :n].contiguous()).all():
        part["key_mask"] = mask
    if select is None:
        own = {name: batch[name][rows] for name in batch if name not in ("ids", "key_mask")}
        return {**part, **own}
    B, N = batch["ids"].shape
    row = torch.full((B,), -1).index_put((rows,), torch.arange(len(rows)))[select // N]
    mine = row >= 0
    return {**part, "labels": batch["labels"][mine], "select": (row * n + select % N)[mine]}
