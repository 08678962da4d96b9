"""Relative positions of queries and keys: rotary, and the LRPE form of TransNormer's released code."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from linnet.errors import InputError
from linnet.ops.positions import position_turns, reflect_positions, rotary_position_angles, turn_by_position

Positions = Literal["lrpe", "rope", "none"]


class RelativePositions(nn.Module):
    """Rotary positions: "rope" with fixed angles, "lrpe" with learned angles after a frozen Householder reflection."""

    u: Tensor

    def __init__(self, kind: Positions, head_dim: int) -> None:
        super().__init__()
        self.kind, self.head_dim = kind, head_dim
        if kind != "none" and head_dim % 2:
            raise InputError(f"positions={kind!r} needs an even head width, not {head_dim}")
        rope = (rotary_position_angles(head_dim, torch.device("cpu")),) if kind == "rope" else ()
        self.fixed = None if kind == "lrpe" else rope
        if kind == "lrpe":
            self.theta = nn.Parameter(rotary_position_angles(head_dim))
            self.register_buffer("u", nn.functional.normalize(torch.randn(head_dim), dim=0))

    def forward(self, position: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Each of `tensors` (B,H,N,D) at `position` (N,) or (B,N)."""
        theta, u = self.angles_and_mirror(position.device)
        if theta is None:
            return tensors
        turns = position_turns(theta, position)
        return tuple(turn_by_position(x if u is None else reflect_positions(x, u), turns) for x in tensors)

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
