"""The part of a sharded model that a rank saves and reads: which rows of which tensor it has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from linnet.config import DistributedConfig
from linnet.distributed.ranks import Ranks
from linnet.distributed.spread import mesh_of_ranks, own_part, part_rows
from linnet.errors import InputError
from linnet.storage import Shard

Rows = Mapping[str, tuple[int, int]]


def tensors_to_shard(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Shard]:
    """What this rank saves: its rows of sharded tensors, if it is in the first copy; rank 0 also saves the others."""
    found = {}
    for name, tensor in tensors.items():
        mesh = getattr(tensor, "device_mesh", None)
        if mesh is None:
            if ranks.first:
                found[name] = Shard(tensor.detach(), tuple(tensor.shape))
            continue
        *copy, part = mesh.get_coordinate()
        rows, own = part_rows(tensor.shape[0], part, mesh.shape[-1]), own_part(tensor.detach())
        if not any(copy) and len(own):
            found[name] = Shard(own, tuple(tensor.shape), rows)
    return found


def rows_of_rank(model: nn.Module, moments: tuple[str, ...], ranks: Ranks, config: DistributedConfig | None) -> Rows:
    """The rows that this rank needs of each tensor of a checkpoint; empty if it needs all rows of all tensors."""
    if ranks.world == 1 or config is None or config.strategy != "fsdp":
        return {}
    world = mesh_of_ranks(config, ranks.world)["shard"]
    own = {name: part_rows(tensor.shape[0], ranks.rank % world, world) for name, tensor in model.named_parameters()}
    return own | {f"{moment}/{name}": rows for moment in moments for name, rows in own.items()}


@torch.no_grad()
def load_shards(model: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Copy this rank's rows into a sharded model; an error names the tensor that does not fit, and `source`."""
    own = {name: own_part(tensor) for name, tensor in model.state_dict().items()}
    for name in sorted({*tensors, *(name for name, tensor in own.items() if tensor.numel())}):
        found, wanted = tensors.get(name), own.get(name)
        if found is None or wanted is None or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise InputError(f"{source} does not fit this model: {name} differs")
    for name, tensor in tensors.items():
        own[name].copy_(tensor)
