"""One sequence over many ranks: mixers and models that read a slice of the tokens each, as if they read them all.

`sequence_parallel` cuts a mixer, `sequence_parallel_model` every mixer of a model. Ranks exchange only states, so
what they send does not grow with the tokens. Every rank calls forward and backward, with slices of the same batch.
"""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from linnet.attention.base import Core, Mixer
from linnet.distributed.sequence_ranks import SequenceRanks
from linnet.errors import InputError, UnsupportedError
from linnet.models.backbone import Model
from linnet.models.outputs import Classifier


def sequence_parallel(mixer: Mixer, group: dist.ProcessGroup | None = None) -> Mixer:
    """`mixer` with the same parameters, whose x (B, n_local, M) is this rank's slice of the tokens.

    `key_mask` and `segments` are the slices too. Slices stand in the order of the ranks of `group` (None: all) and may
    differ in length. A mechanism that cannot be cut is a one-line error.
    """
    if not isinstance(mixer, nn.Module) or not isinstance(getattr(mixer, "core", None), Core):
        raise InputError(f"mixer is a {type(mixer).__name__}: it must be a mixer of create_mixer")
    check_sequence_mixer(mixer)
    cut, core = copy.copy(mixer), copy.copy(mixer.core)
    cut._modules = {**mixer._modules, "core": core}
    core._modules = dict(core._modules)
    core.ranks, core.stepper = SequenceRanks(group), None  # a step would bypass the check for ranks
    return cut


def sequence_parallel_model(model: Model, group: dist.ProcessGroup | None = None) -> Model:
    """Cut all mixers of a model in place and return it: it takes this rank's slice of ids, masks and segments.

    Call it before FSDP or DDP wraps the model. Each rank draws the dropout of its slice.
    """
    check_sequence_model(model)
    model.ranks = SequenceRanks(group)
    for block in model.blocks:
        for mixer in block.mixers:
            mixer.core.ranks, mixer.core.stepper = model.ranks, None
    return model


def check_sequence_model(model: Model) -> None:
    """Raise a one-line error if the sequences of a model (on any device) cannot be cut over ranks."""
    if not isinstance(model, Model):
        raise InputError(
            f"model is a {type(model).__name__}: it must be a linnet model; sequence_parallel cuts a mixer"
        )
    if isinstance(model.output, Classifier) or model.config.patch is not None:
        raise UnsupportedError(f"a {model.config.output} reads whole rows: its sequence cannot be cut over ranks")
    for block in model.blocks:
        for mixer in block.mixers:
            check_sequence_mixer(mixer)


def check_sequence_mixer(mixer: Mixer) -> None:
    """Raise a one-line error if the sequence of a mixer cannot be cut over ranks."""
    if not isinstance(mixer, Mixer):
        raise UnsupportedError(f"{mixer.core.name} has projections of its own: its sequence cannot be cut over ranks")
    hurdle = mixer.core.cut_hurdle()
    if hurdle:
        raise UnsupportedError(f"{mixer.core.name}: its sequence cannot be cut over ranks: {hurdle}")


def scatter_sequence(x: Tensor, group: dist.ProcessGroup | None = None, dim: int = 1) -> Tensor:
    """This rank's slice of a tensor that all ranks have, with the gradient of the whole on every rank."""
    ranks = SequenceRanks(group)
    if x.shape[dim] % ranks.size:
        raise InputError(
            f"a sequence of {x.shape[dim]} tokens: {ranks.size} ranks must divide it (pad it with a key_mask)"
        )
    out: Tensor = _Scatter.apply(x, ranks, dim)
    return out


def gather_sequence(x: Tensor, group: dist.ProcessGroup | None = None, dim: int = 1) -> Tensor:
    """The whole tensor on all ranks, from slices of the same length; its gradient must be the same on all ranks."""
    out: Tensor = _Whole.apply(x, SequenceRanks(group), dim)
    return out


def sum_over_sequence(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The sum of x over the ranks, on all of them; its gradient is that of this rank's x.

    For the loss of a sequence: divide the sum of its terms by the sum of their count, and call backward on every rank.
    """
    out: Tensor = _Sum.apply(x, group)
    return out


def reduce_sequence_gradients(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Add up the gradients of a module over the ranks of a sequence, each of which holds those of its own tokens."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, group=group)


def _gathered(x: Tensor, ranks: SequenceRanks, dim: int) -> Tensor:
    """Gather the slices of all ranks and concatenate them."""
    return torch.cat(list(ranks.gather(x.detach())), dim=dim)


class _Scatter(torch.autograd.Function):
    """The whole -> a slice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: SequenceRanks, dim: int) -> Tensor:
        ctx.ranks, ctx.dim = ranks, dim
        return x.chunk(ranks.size, dim)[ranks.rank].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _gathered(gradients[0], ctx.ranks, ctx.dim), None, None


class _Whole(torch.autograd.Function):
    """A slice -> the whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: SequenceRanks, dim: int) -> Tensor:
        ctx.ranks, ctx.dim = ranks, dim
        return _gathered(x, ranks, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].chunk(ctx.ranks.size, ctx.dim)[ctx.ranks.rank].contiguous(), None, None


class _Sum(torch.autograd.Function):
    """The sum over ranks; each rank's term gets the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        out = x.detach().clone()
        dist.all_reduce(out, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
