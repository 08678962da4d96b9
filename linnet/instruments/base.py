"""The interface of instruments: they read attention weights, a few rows at a time, and return numbers per head.

A `View` is the attention of one layer on B sequences of N tokens. It comes from plain weights, from a mixer and its
input, or from each layer of a model on a text. An instrument turns a view into numbers of shape (B, H, ...).
Reading by rows lets long sequences fit into memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linnet.attention.base import Core, Mixer
from linnet.attention.rows import Kernel, kernel_rows
from linnet.errors import InputError
from linnet.models.backbone import Model
from linnet.models.config import ModelConfig, split_layer_config
from linnet.models.patches import patch_places

ENTRIES = 1 << 20  # weights read at a time: 8 MiB in float64
FAR = 1e6  # patches between an image and its class token
HELD = 1 << 22  # weights kept after the first reading
TOLERANCE = 1e-3  # how far the sum of a normalized row may be from one
HALF_TOLERANCE = 3e-2  # the same for half precision
DIVIDED = "rows divided by their sum"  # the note about weights that do not sum to one


@dataclass(frozen=True)
class View:
    """The weights A of one layer, (B,H,N,N), by rows; `core`, q, k and v are set if they come from a mechanism."""

    name: str
    shape: tuple[int, int, int]  # B, H, N
    causal: bool
    read: Callable[[int, int], Tensor]  # rows from start to stop: (B, H, stop - start, N)
    core: Core | None = None
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    places: Tensor | None = None  # (N, 2): row and column of each patch of an image; a class token is far from all

    def rows(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (start, rows from start on) in float64, not normalized."""
        B, H, N = self.shape
        size, held = max(1, ENTRIES // (B * H * N)), B * H * N * N <= HELD
        for start in range(0, N, size):
            stop = min(start + size, N)
            yield start, self._whole[:, :, start:stop] if held else self.part(start, stop)

    @cached_property
    def _whole(self) -> Tensor:
        return self.part(0, self.shape[2])

    def part(self, start: int, stop: int) -> Tensor:
        """Rows from start to stop in float64; raises if one is not finite."""
        with torch.no_grad():
            kernel = self.kernel  # computed once; `read` would compute it for every part
            A = self.read(start, stop) if kernel is None else kernel_rows(kernel, self.causal, start, stop)
        A = A.cpu().double()
        if not bool(A.isfinite().all()):
            raise InputError(f"{self.name}: a weight is NaN or infinite, so there is nothing to measure")
        return A

    def stochastic(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (start, rows divided by their sum); a row that sums to 0 becomes NaN, which every mean leaves out."""
        for start, A in self.rows():
            total = A.sum(dim=-1, keepdim=True)
            yield start, A / torch.where(total == 0, torch.nan, total)

    def positive(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (start, absolute values of the rows, divided by their sum)."""
        for start, A in self.rows():
            total = A.abs().sum(dim=-1, keepdim=True)
            yield start, A.abs() / torch.where(total == 0, torch.nan, total)

    @cached_property
    def signed(self) -> bool:
        """Whether any weight is negative."""
        return any(bool((A < 0).any()) for _, A in self.rows())

    @cached_property
    def normalized(self) -> bool:
        """Whether each row sums to one."""
        return all(float((A.sum(dim=-1) - 1).abs().max()) <= TOLERANCE for _, A in self.rows())

    @cached_property
    def seen(self) -> Tensor:
        """(N,): how many keys each query can see, causal or not."""
        N = self.shape[2]
        return torch.arange(1.0, N + 1, dtype=torch.float64) if self.causal else torch.full((N,), N).double()

    @cached_property
    def kernel(self) -> Kernel | None:
        """The features of the mechanism, or None if it has none."""
        if self.core is None or self.q is None or self.k is None:
            return None
        with torch.no_grad():
            found = self.core.kernel(self.q, self.k)
        return found and Kernel(found.phi_q.cpu(), found.phi_k.cpu(), found.divided)


class Instrument:
    """One measurement: `measure` returns tensors (B,H,...) by name, and `shows` lists those that go into a table."""

    name: ClassVar[str]  # set by the registry
    what: ClassVar[str]  # one line about it
    paper: ClassVar[str]
    shows: ClassVar[dict[str, str]]  # values with one number per head: name -> heading
    reads: ClassVar[str] = "weights"  # or "gradients": the records of a run
    usual: ClassVar[bool] = True  # whether it is measured if none is named

    def refusal(self, view: View) -> str | None:
        """Why this view cannot be measured; None if it can."""
        return None

    def note(self, view: View) -> str | None:
        """A note that readers of this view's numbers need, or None."""
        return None

    def measure(self, view: View) -> dict[str, Tensor]:
        """The numbers of a view."""
        raise NotImplementedError


def instrument_row_mean(values: list[Tensor]) -> Tensor:
    """(B,H): the mean over all rows of parts (B,H,R), without rows that are NaN."""
    return torch.cat(values, dim=2).nanmean(dim=2)


def instrument_view_of_weights(weights: Tensor, causal: bool = False) -> View:
    """A view of plain weights (..., N, N), whose leading axes become heads; rows must be finite and sum to one."""
    if not isinstance(weights, Tensor) or not weights.is_floating_point():
        kind = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise InputError(f"weights are {kind}: they must be a tensor of floating point numbers")
    shape = tuple(weights.shape)
    if len(shape) < 2 or shape[-1] != shape[-2] or 0 in shape:
        raise InputError(f"weights have shape {shape}: it must be (..., N, N) with N at least 1")
    flat = weights.detach().reshape(1, -1, *shape[-2:])
    view = View("weights", (1, flat.shape[1], shape[-1]), causal, lambda start, stop: flat[:, :, start:stop])
    allowed = TOLERANCE if weights.dtype in (torch.float32, torch.float64) else HALF_TOLERANCE
    for _, A in view.rows():
        total = A.sum(dim=-1)
        worst = float(total.flatten()[(total - 1).abs().argmax()])
        if abs(worst - 1) > allowed:
            raise InputError(f"a row of the weights sums to {worst:.6g}: each must sum to 1 (divide rows by their sum)")
    return view


def instrument_view_of_mixer(mixer: Mixer, x: Tensor, name: str = "mixer", places: Tensor | None = None) -> View:
    """A view of a mixer's attention on its input x (B,N,M); the mixer must be in evaluation mode."""
    if mixer.training:
        raise InputError(f"{name} is in training mode, where its weights are random: call eval() first")
    with torch.no_grad():
        q, k, v = mixer._split(x)
    core = mixer.core
    shape = (q.shape[0], q.shape[1], q.shape[2])
    return View(name, shape, core.causal, lambda start, stop: core.rows(q, k, start, stop), core, q, k, v, places)


def instrument_views_of_model(model: nn.Module, ids: Tensor) -> list[View]:
    """Views of every mechanism of a model on ids (B,N) or pixels, in the order of its layers, in evaluation mode."""
    if not isinstance(model, Model):
        raise InputError(f"model is a {type(model).__name__}: only a model of linnet can be measured")
    if model.training:
        raise InputError("the model is in training mode, where its weights are random: call eval() first")
    inputs: dict[Mixer, Tensor] = {}

    def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(module, Mixer)  # only mixers have this hook
        inputs[module] = args[0].detach()

    mixers = {
        mixer: f"layer {i} {label}"
        for i, (block, layer) in enumerate(zip(model.blocks, model.config.layers, strict=True))
        for label, mixer in zip(split_layer_config(layer)[1], block.mixers, strict=True)
    }
    handles = [mixer.register_forward_pre_hook(keep) for mixer in mixers]
    try:
        with torch.no_grad():
            model.features(ids)
    finally:
        for handle in handles:
            handle.remove()
    places = None if model.config.patch is None else _patch_places(model.config)
    return [instrument_view_of_mixer(mixer, inputs[mixer], name, places) for mixer, name in mixers.items()]


def _patch_places(config: ModelConfig) -> Tensor:
    """(N, 2): row and column of each patch, to compute distances; a class token is far from all."""
    places = patch_places(config).double()
    places[config.grid**2 :] = FAR
    return places
