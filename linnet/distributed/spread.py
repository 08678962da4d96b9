"""A model spread over ranks by torch's own engines: DistributedDataParallel, or fully_shard (FSDP2).

Both reduce gradients to their mean over the ranks. An update needs their sum, divided by the number of terms of
all ranks, so the loop divides by the number of terms per rank.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from linnet.config import DistributedConfig
from linnet.distributed.ranks import Ranks
from linnet.distributed.sequence import check_sequence_model, sequence_parallel_model
from linnet.errors import InputError, UnsupportedError
from linnet.models.backbone import Model


class Spread:
    """A model over the ranks of a run: `forward` is the module to call.

    `sharded` says whether each rank has only a part, `copied` whether DistributedDataParallel keeps copies.
    """

    def __init__(self, forward: nn.Module, sharded: bool = False, copied: bool = False) -> None:
        self.forward, self.sharded, self.copied = forward, sharded, copied

    @contextlib.contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        """Context around a forward and a backward pass: ranks reduce gradients only in the last pass of an update."""
        module: Any = getattr(self.forward, "_orig_mod", self.forward)  # of torch.compile
        if self.sharded:
            module.set_requires_gradient_sync(last)
        alone = contextlib.nullcontext() if last or self.sharded or not hasattr(module, "no_sync") else module.no_sync()
        with alone:
            yield


def mesh_of_ranks(config: DistributedConfig, world: int) -> dict[str, int]:
    """How many copies of the model the ranks hold ("replicate"), each in so many parts ("shard"); `world` in all."""
    if config.strategy == "ddp":
        return {"replicate": world, "shard": 1}
    copies = config.mesh.get("replicate", 1)
    return {"replicate": copies, "shard": world // copies}


def share_of_rank(config: DistributedConfig | None, rank: int, world: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Which share of the rows a rank reads and of how many, and which slice of their tokens and of how many."""
    slices = 1 if config is None else config.slices
    return (rank // slices, world // slices), (rank % slices, slices)


def check_spread(model: Model, config: DistributedConfig | None, world: int, batch: int) -> None:
    """Raise if the ranks, the mesh, the batch and the model (on any device) do not fit together."""
    if config is None:
        if world > 1:
            raise InputError(f"torchrun started {world} ranks: set distributed.strategy=ddp or fsdp")
        return
    if config.mesh and math.prod(config.mesh.values()) != world:
        mesh = " x ".join(f"{name} {size}" for name, size in config.mesh.items())
        has = f"torchrun started {world} ranks" if world > 1 else "without torchrun there is one rank"
        raise InputError(f"distributed.mesh is {mesh}: {has}; leave it out to use any number of ranks")
    if batch % (world // config.slices):
        ranks = "the number of ranks" if config.slices == 1 else "the ranks over the slices of a sequence"
        raise InputError(f"train.batch is {batch}: it must be a multiple of {ranks}, {world // config.slices}")
    if config.slices > 1:
        check_sequence_model(model)
    scalars = [name for name, parameter in model.named_parameters() if parameter.dim() == 0]
    if config.strategy == "fsdp" and world > 1 and scalars:
        raise UnsupportedError(f"distributed.strategy is 'fsdp': {scalars[0]} is a single number, which cannot be cut")


def spread_model(
    model: Model, ranks: Ranks, config: DistributedConfig | None, device: torch.device, half: bool, compiled: bool
) -> Spread:
    """Spread a model that every rank has built identically, on its device; a single rank keeps it as it is.

    `half` computes the blocks of a sharded model in bfloat16; ranks then exchange their weights in that type.
    """
    if ranks.world == 1 or config is None:
        return Spread(torch.compile(model) if compiled else model)  # type: ignore[arg-type]
    if config.slices > 1:
        from torch.distributed.device_mesh import init_device_mesh

        sizes = (ranks.world // config.slices, config.slices)
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("data", "sequence"))
        sequence_parallel_model(model, mesh["sequence"].get_group())
    if config.strategy == "fsdp":
        _shard(model, ranks, config, device, half)
        return Spread(torch.compile(model) if compiled else model, sharded=True)  # type: ignore[arg-type]
    from torch.nn.parallel import DistributedDataParallel

    inner: Any = torch.compile(model) if compiled else model
    # Buffers are equal and never change; older versions of torch call this option otherwise.
    names = inspect.signature(DistributedDataParallel).parameters
    alone = {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}
    return Spread(DistributedDataParallel(inner, gradient_as_bucket_view=True, **alone), copied=True)  # type: ignore[arg-type]


def _shard(model: Model, ranks: Ranks, config: DistributedConfig, device: torch.device, half: bool) -> None:
    """Shard each block, then the remaining parameters, along the first axis."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    sizes = mesh_of_ranks(config, ranks.world)
    names = ("replicate", "shard") if sizes["replicate"] > 1 else ("shard",)
    mesh = init_device_mesh(device.type, tuple(sizes[name] for name in names), mesh_dim_names=names)
    # The rest stays in float32: it holds the residual stream and the norms, as autocast does in one process.
    type_ = torch.bfloat16 if half else None
    policy = MixedPrecisionPolicy(param_dtype=type_, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh)


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor; any other tensor as it is."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def whole_number(tensor: Tensor) -> float:
    """The value of a scalar tensor, also if it is sharded over ranks."""
    full = getattr(tensor, "full_tensor", None)
    return float(tensor if full is None else full())


def part_rows(rows: int, rank: int, world: int) -> tuple[int, int]:
    """The rows [start, stop) of a sharded tensor that a rank has: equal parts, the last ones smaller or empty."""
    size = -(-rows // world)
    return min(rank * size, rows), min((rank + 1) * size, rows)
