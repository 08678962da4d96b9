"""The mean of exponential and block attention on the same q, k, v, in one op where a kernel can."""

from torch import Tensor

from linnet.ops.backend import cpu_serves
from linnet.ops.block import LARGEST, kernel_ids
from linnet.ops.masks import Layout


def exp_block_mean(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, where: Layout, block: int, causal: bool
) -> Tensor | None:
    """(`exp_attention` of alpha q and beta k + `block_attention`) / 2, or None where the CPU's kernels do not serve.

    alpha and beta are (B,H,N,1), (B,H,1,1) or one number, positive, and carry no gradient.
    """
    B, H, N, D = q.shape
    if min(block, N) > LARGEST or not cpu_serves(q, v):
        return None
    from linnet.ops.cpu.exp_block import joined

    scales = (x.expand(B, H, x.shape[-2] if x.dim() > 1 else 1, 1) for x in (alpha, beta))
    ids = kernel_ids(where, block, B)
    o: Tensor = joined(q, k, v, *scales, where.real, where.run, ids, block, causal, D**-0.5)[0]
    return o
