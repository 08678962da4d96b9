"""Relative positions of queries and keys: rotary, in one or two dimensions, and the LRPE form of TransNormer's code."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from linnet.errors import InputError
from linnet.ops.positions import position_turns, reflect_positions, rotary_position_angles, turn_by_position

Positions = Literal["lrpe", "rope", "rope2d", "none"]
GRID_BASE = 100.0  # the slowest of the angles of a grid: images have fewer rows than texts have tokens


class RelativePositions(nn.Module):
    """Rotary positions: "rope" with fixed angles, "lrpe" with learned angles after a frozen Householder reflection.

    "rope2d" turns half of the pairs by the row of a token and half by its column. Tokens are a square, row by row,
    unless `place_grid` says otherwise.
    """

    u: Tensor
    places: Tensor | None = None  # (N, 2) on the CPU

    def __init__(self, kind: Positions, head_dim: int) -> None:
        super().__init__()
        self.kind, self.head_dim = kind, head_dim
        if kind != "none" and head_dim % 2:
            raise InputError(f"positions={kind!r} needs an even head width, not {head_dim}")
        if kind == "rope2d" and head_dim % 4:
            raise InputError(f"positions='rope2d' needs a head width divisible by 4, not {head_dim}")
        rope = (rotary_position_angles(head_dim, torch.device("cpu")),) if kind == "rope" else ()
        self.fixed = None if kind == "lrpe" else rope
        if kind == "lrpe":
            self.theta = nn.Parameter(rotary_position_angles(head_dim))
            self.register_buffer("u", nn.functional.normalize(torch.randn(head_dim), dim=0))

    def forward(self, position: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Each of `tensors` (B,H,N,D) at `position` (N,) or (B,N)."""
        if self.kind == "rope2d":
            turns = self._grid_turns(position)
            return tuple(turn_by_position(x, turns) for x in tensors)
        theta, u = self.angles_and_mirror(position.device)
        if theta is None:
            return tensors
        turns = position_turns(theta, position)
        return tuple(turn_by_position(x if u is None else reflect_positions(x, u), turns) for x in tensors)

    def place_grid(self, places: Tensor) -> None:
        """Set the row and column (N, 2) of each token; other kinds of positions do not need them."""
        self.places = places if self.kind == "rope2d" else None

    def _grid_turns(self, position: Tensor) -> Tensor:
        """Like `position_turns`: the first half of the pairs turns by row, the second by column."""
        N, places = position.shape[-1], self.places
        if places is None:
            side = math.isqrt(N)
            if side**2 != N:
                raise InputError(f"positions='rope2d' reads tokens as a square: {N} is not a square number")
            index = torch.arange(N, device="cpu")
            places = torch.stack((index // side, index % side), dim=1)
        elif len(places) != N:
            raise InputError(f"positions='rope2d' was built for {len(places)} tokens, not {N}")
        theta = GRID_BASE ** (-torch.arange(0, self.head_dim, 4, device=position.device).float() / self.head_dim)
        rows, columns = places.to(position.device)[position].unbind(dim=-1)
        return torch.cat([position_turns(theta, rows), position_turns(theta, columns)], dim=-2)

    def angles_and_mirror(self, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """theta (D/2,) and u (D,), or None."""
        if self.kind == "lrpe":
            return self.theta, self.u
        return rotary_position_angles(self.head_dim, device) if self.kind == "rope" else None, None

    def _apply(self, fn: Any, recurse: bool = True) -> "RelativePositions":
        """Angles stay float32 in a half-precision module: 8 bits of an angle, times t, are noise."""
        before = self.theta.data if self.kind == "lrpe" else None
        super()._apply(fn, recurse)
        if before is not None and self.theta.dtype in (torch.float16, torch.bfloat16):
            gradient = self.theta.grad
            self.theta.grad = None
            self.theta.data = before.to(self.theta.device)
            self.theta.grad = None if gradient is None else gradient.float()
        return self


def relative_angles_on_cpu(core: nn.Module) -> tuple[Tensor | None, ...]:
    """theta and u of a core's positions on the CPU, as far as they exist; nothing where it has no positions.

    Read from the modules' dicts: attribute lookup is too slow for a decoding step.
    """
    positions = core.__dict__["_modules"].get("positions")
    if positions is None:
        return ()
    own = positions.__dict__
    fixed: tuple[Tensor, ...] | None = own["fixed"]
    return (own["_parameters"].get("theta"), own["_buffers"].get("u")) if fixed is None else fixed
