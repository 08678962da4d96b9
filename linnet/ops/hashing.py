"""Random whole numbers as a function of a stored seed and of coordinates: the same on any device, in any order.

A mechanism that samples asks for the draw at (head, token, ...): it does not depend on batch, padding or call.
"""

import torch
from torch import Tensor

BITS = 32


def new_seed(device: torch.device | None = None) -> Tensor:
    """A seed drawn from torch's generator, for a buffer that is saved with the weights, or for one pass."""
    return torch.randint(2**31, (), device=device)


def hashed(seed: Tensor, *coordinates: Tensor) -> Tensor:
    """Numbers in [0, 2^32), of the shape to which the coordinates broadcast; each is at least 0 and below 2^31."""
    h = _mix(seed)
    for x in coordinates:
        h = _mix(h ^ _mix(x))
    return h


def below(h: Tensor, n: Tensor | int) -> Tensor:
    """A draw as a number in [0, n), n at most 2^31."""
    return (h * n) >> BITS


def _mix(x: Tensor) -> Tensor:
    """A permutation of [0, 2^32) that leaves no pattern; the products stay below 2^63."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B + 0x9E3779B9) & (2**BITS - 1)
    return x ^ (x >> 16)
