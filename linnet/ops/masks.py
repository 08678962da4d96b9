"""The layout of the tokens: key mask and segments in the one form that every op uses.

A segment is a maximal run of equal ids. Positions count from the first real token of the row or segment, so that
left padding, right padding and packing all equal the plain run; a masked token inside a row only removes its key.
Masked tokens before the first and after the last real token belong to the runs of those two tokens.

In cross-attention the queries are another sequence than the keys. Then the layout is that of the keys, and `queries`
holds the layout of the queries, none of which is masked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from linnet.errors import InputError, UnsupportedError
from linnet.ops.precision import State


@dataclass(frozen=True)
class Layout:
    """Per token: whether its key is real, which run it is in, and its position in that run."""

    real: Tensor | None  # (B, N) bool; None: all real
    run: Tensor | None  # (B, N) int64, 0, 1, ... along the row; None: one run
    position: Tensor  # (N,) or (B, N) int64
    length: Tensor | int  # (B,) int64 or int: positions of the last run, which is the position of a next token
    queries: "Layout | None" = None  # of queries that are not the tokens of the keys; None: they are

    def lengths(self, B: int) -> Tensor:
        """`length` as a tensor (B,)."""
        return torch.as_tensor(self.length, device=self.position.device).expand(B)

    def reals(self, B: int) -> Tensor:
        """`real` as a tensor (B,N)."""
        if self.real is not None:
            return self.real
        return torch.ones(B, self.position.shape[-1], dtype=torch.bool, device=self.position.device)

    def after(self, start: Tensor | None) -> "Layout":
        """The same tokens after `start` (B,) earlier positions."""
        if start is None:
            return self
        length = self.lengths(len(start)) + start
        return Layout(self.real, self.run, self.position + start[:, None], length)

    def seen_by(self, T: int) -> "Layout":
        """The same tokens, as keys of T queries from another sequence."""
        return replace(self, queries=Layout(None, None, torch.arange(T, device=self.position.device), T))

    @property
    def of_queries(self) -> "Layout":
        """The layout of the queries: that of the keys, unless they are another sequence."""
        return self if self.queries is None else self.queries


def layout_of_masks(B: int, N: int, key_mask: Tensor | None, segments: Tensor | None, device: torch.device) -> Layout:
    """Read and check a key mask (bool or 0/1, True = real) and segment ids, both (B, N)."""
    index = torch.arange(N, device=device)
    if key_mask is None and segments is None:
        return Layout(None, None, index, N)
    real = None if key_mask is None else check_mask(key_mask, B, N).to(device)
    seen = torch.ones(B, N, dtype=torch.bool, device=device) if real is None else real
    last = torch.where(seen, index, -1).amax(dim=1, keepdim=True)  # (B, 1); -1: nothing is real
    if segments is None:
        run = torch.zeros(B, N, dtype=torch.int64, device=device)
    else:
        ids = check_segments(segments, B, N).to(device)
        change = torch.zeros(B, N, dtype=torch.int64, device=device)
        change[:, 1:] = (ids[:, 1:] != ids[:, :-1]).to(torch.int64)
        run = change.cumsum(dim=1)
        first = torch.where(seen, index, N - 1).amin(dim=1, keepdim=True)
        bounds = run.gather(1, first), run.gather(1, last.clamp(min=0))
        run = torch.minimum(torch.maximum(run, bounds[0]), bounds[1])
    start = torch.full((B, N), N, dtype=torch.int64, device=device)  # first real token of every run
    start = start.scatter_reduce(1, run, torch.where(seen, index, N), "amin").gather(1, run)
    position = (torch.minimum(index, last) - start).clamp(min=0)
    length = torch.where(last >= 0, position[:, -1:] + 1, 0).squeeze(1)
    return Layout(real, None if segments is None else run, position, length)


def check_mask(key_mask: Tensor, B: int, N: int) -> Tensor:
    """A key mask as bool; other numbers than 0 and 1, such as an additive mask, are refused."""
    mask = _checked("key_mask", key_mask, B, N)
    if mask.dtype == torch.bool:
        return mask
    if not torch.compiler.is_compiling() and not ((mask == 0) | (mask == 1)).all():
        raise InputError("key_mask holds values other than 0 and 1: 1 (or True) marks a real token")
    return mask == 1


def check_segments(segments: Tensor, B: int, N: int) -> Tensor:
    """Segment ids, which must be integers."""
    return _checked("segments", segments, B, N)


def _checked(name: str, x: Tensor, B: int, N: int) -> Tensor:
    """`x` if it is (B, N) and has a fitting type; raises otherwise."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} is a {type(x).__name__}: it must be a tensor (batch, tokens)")
    if tuple(x.shape) != (B, N):
        raise InputError(f"{name} has shape {tuple(x.shape)}: it must be (batch, tokens) = ({B}, {N})")
    if name == "segments" and (x.is_floating_point() or x.is_complex()):
        raise InputError(f"segments has type {x.dtype}: it must hold integers")
    return x


def check_masked_length(length: Tensor | int, most: int, name: str) -> None:
    """Raise if a row needs more than `most` positions; not while compiling, when no value is known."""
    length = torch.as_tensor(length)
    if torch.compiler.is_compiling() or length.is_meta:
        return
    if int(length.max()) > most:
        raise InputError(f"a sequence of {int(length.max())} tokens: {name} was built with max_length={most}")


def clear_masked(real: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """(B,H,N,.) tensors with 0 in masked tokens, whose content is never read, not even a NaN."""
    return tensors if real is None else tuple(x.masked_fill(~real[:, None, :, None], 0) for x in tensors)


def masked_clock(where: Layout, B: int) -> Tensor:
    """(B, N) positions for decay; in a row without a real token no time passes for its state (at -1)."""
    position = where.position.expand(B, -1)
    if not isinstance(where.length, Tensor):
        return position
    return torch.where(where.length[:, None] > 0, position, -1)


def visible_mask(where: Layout, causal: bool) -> Tensor:
    """Which key each query may see: bool, broadcast to (B, 1, N, N) or (B, 1, T, N), rows are queries."""
    N = where.position.shape[-1]
    see = torch.ones(1, 1, N if causal else 1, N, dtype=torch.bool, device=where.position.device)
    if causal:
        see = see.tril()
    if where.real is not None:
        see = see & where.real[:, None, None, :]
    if where.run is not None:
        see = see & (where.run[:, None, :, None] == where.run[:, None, None, :])
    return see


def check_state_and_mask(state: object, shapes: Sequence[tuple[int | None, ...]], device: torch.device) -> None:
    """Raise unless `state` is None or a tuple of tensors of these shapes, where None is any size."""
    if state is None:
        return
    if not isinstance(state, tuple) or not all(isinstance(part, Tensor) for part in state):
        raise InputError(f"state is not a tuple of tensors: it must hold the shapes {_shown(shapes)}")
    fits = len(state) == len(shapes) and all(
        part.dim() == len(shape) and all(n is None or n == m for n, m in zip(shape, part.shape, strict=True))
        for part, shape in zip(state, shapes, strict=True)
    )
    if not fits:
        given = ", ".join(str(tuple(part.shape)) for part in state) or "nothing"
        raise InputError(f"state holds {given}: it must hold the shapes {_shown(shapes)}")
    if any(part.device != device for part in state):
        raise InputError(f"state is on {state[0].device}: it must be on {device} with the rest")
    if any(part.is_complex() for part in state):
        raise InputError("state is complex: it must hold real numbers")


def _shown(shapes: Sequence[tuple[int | None, ...]]) -> str:
    """Shapes for an error message, in a separate function because compilers cannot trace it."""
    return ", ".join(str(tuple("*" if n is None else n for n in shape)).replace("'", "") for shape in shapes)


def check_qkv_for_masks(q: Tensor, k: Tensor, v: Tensor, cross: bool = False) -> tuple[int, int, int]:
    """(B, H, N) of q if the three tensors fit together; raises otherwise.

    `cross` allows q another length than k and v, and more heads by a whole factor.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise InputError(f"{name} is a {type(x).__name__}: it must be a tensor (batch, heads, tokens, width)")
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise InputError(f"{shapes}: each must have four axes (batch, heads, tokens, width)")
    if not cross and (q.shape[:3] != k.shape[:3] or q.shape[:3] != v.shape[:3]):
        raise InputError(f"{shapes}: batch, heads and tokens must be the same in all three")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0]:
        raise InputError(f"{shapes}: batch, heads and tokens of k and v, and the batch of q, must be the same")
    if q.shape[3] != k.shape[3]:
        raise InputError(f"{shapes}: q and k must have the same width")
    if any(n < 1 for n in (*q.shape, *k.shape, v.shape[3])):  # `min` would tie torch.export to the smallest axis
        raise InputError(f"{shapes}: no axis may be empty")
    if q.shape[1] % k.shape[1]:
        raise InputError(f"{shapes}: the heads of k and v must divide the heads of q")
    if not q.dtype == k.dtype == v.dtype:
        raise InputError(f"q is {q.dtype}, k {k.dtype}, v {v.dtype}: all three must have the same type")
    if q.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise InputError(f"q, k and v are {q.dtype}: they must be float64, float32, bfloat16 or float16")
    if not q.device == k.device == v.device:
        raise InputError(f"q is on {q.device}, k on {k.device}, v on {v.device}: all three must be on the same device")
    B, H, N, _ = q.shape
    return B, H, N


def crosses_masks(q: Tensor, k: Tensor, segments: Tensor | None) -> bool:
    """Whether q has another length or more heads than k, in which case segments are a one-line error."""
    if q.shape[1:3] == k.shape[1:3]:
        return False
    if segments is not None:
        raise UnsupportedError("segments is given: it needs q and k of the same length and number of heads")
    return True


def fold_masked_heads(q: Tensor, heads: int) -> Tensor:
    """q (B,H,T,D) as (B,`heads`,T H/`heads`,D): query heads that share a key head become more queries of that head."""
    return q if q.shape[1] == heads else q.unflatten(1, (heads, -1)).flatten(2, 3)


def unfold_masked_heads(o: Tensor, T: int) -> Tensor:
    """`fold_masked_heads` undone: o (B,H,T,E) again."""
    return o if o.shape[2] == T else o.unflatten(2, (-1, T)).flatten(1, 2)


def check_mask_flags(**flags: object) -> None:
    """Raise if a flag is not True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InputError(f"{name} is {flag!r}: it must be True or False")


def attend_with_masks(
    attend: Callable[[Tensor, Layout], tuple[Tensor, State]], q: Tensor, k: Tensor, v: Tensor, causal: bool,
    key_mask: Tensor | None, segments: Tensor | None, return_state: bool,
) -> Any:  # fmt: skip
    """The result of a public op: `attend` gets the queries with folded heads, and the layout of the masks."""
    B, _, T = check_qkv_for_masks(q, k, v, cross=causal is False)
    crosses_masks(q, k, segments)
    where = layout_of_masks(B, v.shape[2], key_mask, segments, v.device)
    o, after = attend(fold_masked_heads(q, v.shape[1]), where)
    o = unfold_masked_heads(o, T)
    return (o, after) if return_state else o
