"""The mean of exponential and block attention on the same q, k, v, in one op where a kernel can compute it."""

from torch import Tensor

from linnet.ops.backend import cpu_backend_serves
from linnet.ops.block import LARGEST
from linnet.ops.masks import Layout
from linnet.ops.rules import ExpRule


def exp_block_mean(q: Tensor, k: Tensor, v: Tensor, where: Layout, block: int, rule: ExpRule) -> Tensor | None:
    """(`exp_attention` by `rule` + softmax in blocks) / 2, or None where the CPU kernels cannot run."""
    if min(block, q.shape[2]) > LARGEST or not cpu_backend_serves(q, v):
        return None
    from linnet.ops.cpu import exp_block

    return exp_block.cpu_exp_block_mean(q, k, v, where, block, rule)
