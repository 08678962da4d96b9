"""One token more on the CPU's kernels: features, state and read in a single call, for a step is mostly overhead.

A step that the kernel does not take (another type, device, backend or width, or a gradient to keep) gives None, and the
caller goes its ordinary way, which also has the words for what is wrong. What does not change from step to step is
looked at once; what may change is looked at each time, in the few ways that cost least.
"""

import os
import struct
from typing import NamedTuple

import torch
from torch import Tensor

from linnet.ops.backend import WIDTHS
from linnet.ops.cpu.arguments import SMALL
from linnet.ops.cpu.build import kernels
from linnet.ops.memory import Maybe
from linnet.ops.precision import State

PHI = ("elu", "1+elu", "exp")  # the kernel's numbers of features,
PARTS = ("S", "z", "m", "count", "moments")  # and of what a state may hold
_FLOAT = torch.float32
_TYPES = _FLOAT, _FLOAT, _FLOAT, torch.int64, torch.float64
_pack_sizes = struct.Struct("5q 9q 2q 3d").pack  # `struct Step` of decode.h
_pack_pointers = struct.Struct("16q").pack  # `struct Pointers`


class Mechanism(NamedTuple):
    """What a step of a mechanism is made of."""

    phi: str  # of PHI
    state: tuple[str, ...]  # of PARTS
    srms: bool = False  # over the merged heads, at the end
    curve: tuple[float, float, float] = (0.0, 0.0, 0.0)  # c2, c1, c0 of lln


class _Sizes(NamedTuple):
    """What one kind of inputs has in common."""

    q: torch.Size
    v: torch.Size
    strides: tuple[tuple[int, ...], ...]  # of q, k and v
    state: list[tuple[int, torch.dtype, tuple[int, ...]]]  # number, type and shape of its parts
    packed: bytes


class Stepper:
    """The steps of one core, of `heads` heads with keys of `width`."""

    def __init__(self, how: Mechanism, heads: int, width: int) -> None:
        self.how, self.heads, self.width = how, heads, width
        self.known: _Sizes | None = None  # those of the last step

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, state: State, theta: Maybe = None, u: Maybe = None
    ) -> tuple[Tensor, State] | None:
        """o (B,H,1,E) and the next state, or None; `theta` (D/2,) turns q and k by position after a reflection `u`."""
        if not self._plain(q, k, v, state, theta, u):
            return None
        known = self.known
        if (
            known is None
            or q.shape != known.q
            or k.shape != known.q
            or v.shape != known.v
            or (q.stride(), k.stride(), v.stride()) != known.strides
        ):
            known = self._sizes(q, k, v)
            if known is None:
                return None
        o = torch.empty_like(v)
        after, old, new = [], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]
        for (part, dtype, shape), x in zip(known.state, state, strict=False):
            if type(x) is not Tensor or x.dtype is not dtype or x.shape != shape or not x.is_contiguous():
                return None
            if not x.is_cpu or (x.requires_grad and torch.is_grad_enabled()):
                return None
            y = torch.empty_like(x)
            old[part], new[part] = x.data_ptr(), y.data_ptr()
            after.append(y)
        pointers = _pack_pointers(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), *old, *new,
            0 if theta is None else theta.data_ptr(), 0 if u is None else u.data_ptr(),
        )  # fmt: skip
        kernels().library.linnet_step(known.packed, pointers)  # type: ignore[union-attr]
        return o, tuple(after)

    def _plain(self, q: Tensor, k: Tensor, v: Tensor, state: State, theta: Maybe, u: Maybe) -> bool:
        """Whether the kernel reads such tensors, no gradient is wanted, and no other backend was chosen."""
        if torch.compiler.is_compiling() or type(state) is not tuple or len(state) != len(self.how.state):
            return False
        if not (type(q) is type(k) is type(v) is Tensor and q.dtype is k.dtype is v.dtype is _FLOAT):
            return False
        if not (q.is_cpu and k.is_cpu and v.is_cpu) or q.is_neg() or k.is_neg() or v.is_neg():
            return False
        if theta is not None and (theta.dtype is not _FLOAT or not theta.is_cpu):
            return False
        if u is not None and (u.dtype is not _FLOAT or not u.is_cpu):
            return False
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, theta)):
            return False
        return (os.environ.get("LINNET_BACKEND") or "cpu") == "cpu" and kernels().library is not None

    def _sizes(self, q: Tensor, k: Tensor, v: Tensor) -> _Sizes | None:
        """Look at shapes and strides that were not there at the step before."""
        H, D = self.heads, self.width
        if q.dim() != 4 or v.dim() != 4 or q.shape != k.shape or q.shape[:3] != v.shape[:3]:
            return None
        B, E = q.shape[0], v.shape[3]
        fits = WIDTHS[0] <= D <= WIDTHS[1] and WIDTHS[0] <= E <= WIDTHS[1] and B > 0
        if not fits or q.shape[1:] != (H, 1, D) or {x.stride(3) for x in (q, k, v)} != {1}:
            return None
        if not torch.empty_like(v).is_contiguous():
            return None
        threads = 1 if B * H * D * E < SMALL else min(torch.get_num_threads(), B)
        strides = q.stride(), k.stride(), v.stride()
        gaps = [step for stride in strides for step in stride[:3]]
        how = self.how
        shapes: list[tuple[int, ...]] = [(B, H, D, E), (B, H, D), (B, H, D), (B,), (B, H, 6)]
        packed = _pack_sizes(B, H, D, E, threads, *gaps, PHI.index(how.phi), how.srms, *how.curve)
        parts = [(i, _TYPES[i], shapes[i]) for i in map(PARTS.index, how.state)]
        self.known = _Sizes(q.shape, v.shape, strides, parts, packed)
        return self.known
