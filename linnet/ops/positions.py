"""Position encodings: rotary, its LRPE form (a Householder reflection first), sinusoidal and learned tables.

The text of TransNormer (arXiv 2210.10340) does not mention LRPE, but the published parameter counts contain its angles.
"""

import torch
from torch import Tensor

from linnet.errors import InputError
from linnet.ops.backend import backend_serves
from linnet.ops.custom_op import custom_op_is_plain
from linnet.ops.precision import accumulator_precision


def rotary_position_angles(D: int, device: torch.device | None = None) -> Tensor:
    """theta_i = 10000^(-2i/D) for the D/2 pairs of a head."""
    return 10000.0 ** (-torch.arange(0, D, 2, device=device, dtype=torch.float32) / D)  # (D/2,)


def position_turns(theta: Tensor, position: Tensor) -> Tensor:
    """Cosines and sines of t theta in float64 for `position` t (N,) or (B,N): (N, D/2, 2) or (B, N, D/2, 2)."""
    whole = position.dtype is torch.int64 and position.device.type == "cpu"
    if whole and position.numel() and custom_op_is_plain(theta, position):
        first, last = (int(x) for x in position.aminmax())
        if last - first + 1 < position.numel():  # rows and blocks share positions: each is computed once
            return position_turns(theta, torch.arange(first, last + 1, device=position.device))[position - first]
    # In float32 the angle of token 65,536 would be off by 0.004 radians.
    angle = position[..., None].double() * theta.double()
    return torch.stack((angle.cos(), angle.sin()), dim=-1)


def rotate_by_position(x: Tensor, theta: Tensor, position: Tensor) -> Tensor:
    """Turn adjacent pairs of x (B,H,N,D) by position * theta; position is (N,) or (B,N)."""
    return turn_by_position(x, position_turns(theta, position))


def turn_by_position(x: Tensor, turns: Tensor) -> Tensor:
    """Turn adjacent pairs of x (B,H,N,D) by the result of `position_turns`."""
    if x.numel() and not turns.requires_grad and backend_serves("rotate", x):
        from linnet.ops.cpu.rotate import rotate as kernel

        y: Tensor = kernel(x, turns.flatten(-2).float(), False)
        return y
    wide = x.to(accumulator_precision(x.dtype))
    if turns.dim() == 4:
        turns = turns[:, None]  # (B, 1, N, D/2, 2): before it is complex, for ONNX
    turns = torch.view_as_complex(turns if wide.dtype == torch.float64 else turns.float())
    if torch.compiler.is_compiling() or not _in_pairs(wide):
        wide = wide.contiguous()
    pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))  # (B, H, N, D/2)
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)  # M3


def _in_pairs(x: Tensor) -> bool:
    """Whether adjacent pairs have the memory layout of complex numbers, so that no copy is needed."""
    return x.stride(-1) == 1 and not any(step % 2 for step in (*x.stride()[:-1], x.storage_offset()))


def reflect_positions(x: Tensor, u: Tensor) -> Tensor:
    """The Householder reflection x - 2 (x.u) u, with u a unit vector of D entries."""
    u = u.to(x.dtype)
    return x - (x @ (2 * u))[..., None] * u  # M4


def learned_positions(position: Tensor, table: Tensor, first: int = 0) -> Tensor:
    """Rows of a learned table (L, M) for `position` (...,), where position 0 is row `first`: (..., M)."""
    limit = table.shape[0] - first
    fits = position.dim() == 1 and len(position) <= limit  # known without a device synchronization
    if not fits and position.device.type != "meta" and not torch.compiler.is_compiling():
        longest = int(position.max()) + 1
        if longest > limit:
            raise InputError(f"a sequence has {longest} tokens: this model has {limit} learned positions")
    return torch.nn.functional.embedding(position + first, table)


def sinusoidal_positions(position: Tensor, M: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Fixed encoding of `position` (...,) as (..., M): a sine half, then a cosine half, 10000^(-i/(M/2-1)) apart.

    It is computed in float32, or in float64 where `dtype` is that.
    """
    half, wide = M // 2, accumulator_precision(dtype)
    index = torch.arange(half, device=position.device, dtype=wide)
    angle = position[..., None].to(wide) * 10000.0 ** (-index / max(half - 1, 1))
    table = torch.cat([angle.sin(), angle.cos()], dim=-1)
    return torch.nn.functional.pad(table, (0, M - 2 * half))
