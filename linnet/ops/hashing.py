"""Random whole numbers as a hash of a stored seed and coordinates: the same on any device, in any order.

A mechanism that samples hashes (head, token, ...), so the numbers do not depend on batch, padding or call.
"""

import torch
from torch import Tensor

BITS = 32
FACTOR, OFFSET = 0x45D9F3B, 0x9E3779B9  # of the mixing; linnet/ops/cpu/source/hashing.h has the same


def new_hashing_seed(device: torch.device | None = None) -> Tensor:
    """A seed from torch's generator, for a buffer that is saved with the weights, or for one pass."""
    return torch.randint(2**31, (), device=device)


def hash_coordinates(seed: Tensor, *coordinates: Tensor) -> Tensor:
    """Numbers in [0, 2^32) of the shape to which the coordinates broadcast; coordinates are in [0, 2^31)."""
    h = _mix(seed)
    for x in coordinates:
        h = _mix(h ^ _mix(x))
    return h


def hash_below(h: Tensor, n: Tensor | int) -> Tensor:
    """A hash as a number in [0, n), n at most 2^31."""
    return (h * n) >> BITS


def hash_stays(h: Tensor, x: Tensor, p: float) -> Tensor:
    """Whether the hash of one more coordinate x than those of h is at least p 2^32: with probability 1 - p.

    This is `hash_coordinates` in 32 bits, which take half the time. torch has them with a sign, so a shift is masked,
    and the highest bit is flipped before a comparison.
    """
    h = h.to(torch.int32) ^ _mix(x).to(torch.int32)
    for _ in range(2):
        h = (h ^ ((h >> 16) & 0xFFFF)) * FACTOR + _signed(OFFSET)
    h = h ^ ((h >> 16) & 0xFFFF)
    return (h ^ -(2**31)) >= _signed(int(p * 2**BITS) ^ 2**31)


def _signed(n: int) -> int:
    """The 32 bits of n as a number with a sign."""
    return n - 2**BITS if n >= 2**31 else n


def _mix(x: Tensor) -> Tensor:
    """A permutation of [0, 2^32) that leaves no pattern; the products stay below 2^63."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * FACTOR + OFFSET) & (2**BITS - 1)
    return x ^ (x >> 16)
