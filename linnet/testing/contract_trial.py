"""One attention under test: its inputs, its dense definition, and how far two results are apart."""

import copy
import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn

from linnet.attention.base import Core
from linnet.errors import InputError, LinnetError


def contract_difference(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest entry of `b`; infinite if anything is not finite."""
    if not (a.isfinite().all() and b.isfinite().all()):
        return float("inf")
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


class Trial:
    """One attention, in evaluation mode, and what is known about it."""

    def __init__(
        self, fn: Callable[..., Tensor], causal: bool, heads: int, head_dim: int, lengths: tuple[int, ...]
    ) -> None:
        self.fn, self.causal, self.heads, self.head_dim, self.lengths = fn, causal, heads, head_dim, lengths
        self.core = fn if isinstance(fn, Core) else None
        if isinstance(fn, nn.Module):
            fn.eval()
        if self.core is not None:
            self.name, self.masks, self.packs = self.core.name, True, self.core.packed
            self.heads, self.head_dim = self.core.heads, self.core.head_dim
        else:
            try:
                known = set(inspect.signature(fn.forward if isinstance(fn, nn.Module) else fn).parameters)
            except ValueError:  # a C function has no signature, so it is not checked for masks
                known = set()
            self.name = getattr(fn, "__name__", type(fn).__name__)
            self.masks, self.packs = "key_mask" in known, "segments" in known
            self.lengths = self._lengths_that_run()

    def inputs(self, N: int, B: int = 2, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Random q, k, v."""
        return [torch.randn(B, self.heads, N, self.head_dim, dtype=dtype) for _ in range(3)]

    def _lengths_that_run(self) -> tuple[int, ...]:
        """The lengths that a foreign function accepts."""
        good, why = [], ""
        for N in self.lengths:
            q, k, v = self.inputs(N)
            try:
                o = self.fn(q, k, v)
            except (LinnetError, RuntimeError, AssertionError, ValueError, TypeError) as error:
                why = " ".join(str(error).split())
                continue
            if not isinstance(o, Tensor) or o.shape != v.shape:
                what = f"shape {tuple(o.shape)}" if isinstance(o, Tensor) else f"a {type(o).__name__}"
                raise InputError(f"{self.name} returns {what}: it must return the shape of v, {tuple(v.shape)}")
            good.append(N)
        if not good:
            raise InputError(f"{self.name} fails at all lengths {self.lengths}: {why}")
        return tuple(good)

    def typed(self, dtype: torch.dtype) -> Callable[..., Tensor]:
        """The attention with its parameters in `dtype`."""
        return copy.deepcopy(self.fn).to(dtype) if isinstance(self.fn, nn.Module) else self.fn

    @staticmethod
    def twin(
        core: Core, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """The output by the dense definition."""
        return core.finish(core.definition(q, k, v, core.layout(q, k, v, real, ids), core.causal))

    def masked(self, N: int) -> tuple[Tensor, Tensor | None]:
        """A key mask with some keys missing and, if supported, two segments."""
        real = torch.rand(2, N) > 0.2
        real[:, [0, N // 2, N - 1]] = True  # no padding at the ends of a segment
        return real, (torch.arange(N) >= N // 2).long().expand(2, N) if self.packs else None
