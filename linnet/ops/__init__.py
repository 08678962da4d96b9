"""Pure functions on (B, H, N, D) tensors; `reference` holds the dense definition of each."""

from linnet.ops import reference
from linnet.ops.block import block_attention
from linnet.ops.exponential import exp_attention
from linnet.ops.linear import linear_attention

__all__ = ["block_attention", "exp_attention", "linear_attention", "reference"]
