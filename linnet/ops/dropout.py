"""Dropout of activations, seeded by torch's generator; one pass each way where the CPU kernels run.

On a CPU every backend drops the same numbers; on a GPU torch draws them.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from linnet.ops.backend import backend_serves
from linnet.ops.hashing import hash_coordinates, hash_stays, new_hashing_seed

SHEET = 1 << 16  # numbers whose places are counted together


def dropout(x: Tensor, p: float) -> Tensor:
    """x with each number 0 with probability p, else divided by 1 - p."""
    if not 0 < p < 1 or not x.numel() or x.device.type != "cpu":
        return F.dropout(x, p)
    seed = new_hashing_seed(x.device)
    if backend_serves("dropout", x):
        from linnet.ops.cpu.dropout import dropout as kernel

        y: Tensor = kernel(x, seed, p)
        return y
    return torch.where(_kept(x, seed, p), x * (1 / (1 - p)), 0)  # M50


def _kept(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """Which numbers of x stay, by their places as if x were contiguous."""
    n = x.numel()
    sheet = torch.arange(-(-n // SHEET), device=x.device)
    place = torch.arange(min(n, SHEET), device=x.device)
    return hash_stays(hash_coordinates(seed, sheet[:, None]), place, p).flatten()[:n].view(x.shape)
