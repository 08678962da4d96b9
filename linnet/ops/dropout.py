"""Dropout of activations, seeded by torch's generator; one pass each way where the CPU kernels run."""

from torch import Tensor
from torch.nn import functional as F

from linnet.ops.backend import serves
from linnet.ops.hashing import new_seed


def dropout(x: Tensor, p: float) -> Tensor:
    """x with each number 0 with probability p, else divided by 1 - p."""
    if 0 < p < 1 and x.numel() and serves("dropout", x):
        from linnet.ops.cpu.dropout import dropout as kernel

        y: Tensor = kernel(x, new_seed(x.device), p)
        return y
    return F.dropout(x, p)  # M50
