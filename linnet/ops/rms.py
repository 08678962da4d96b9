"""Root-mean-square norms: SRMS, which has no gain, and RMS, which has one.

TransNormer (arXiv 2210.10340) applies SRMS over the merged heads after its unscaled attention. Its released code, like
this file, adds eps to the root mean square; Eq. 34 of the paper puts it under the root.
"""

import math

import torch
from torch import Tensor

from linnet.ops.backend import backend_serves
from linnet.ops.precision import accumulator_precision


def srms(x: Tensor, dim: int | tuple[int, ...] = -1, eps: float = 1e-8) -> Tensor:
    """x / (rms(x) + eps) over `dim`, computed in at least float32; the gradient at the zero vector is finite."""
    dims = (dim,) if isinstance(dim, int) else dim
    heads = dims == (1, 3) and x.dim() == 4
    if (heads or dims == (-1,)) and x.numel() and backend_serves("srms", x):
        from linnet.ops.cpu.norm import srms as kernel

        y: Tensor = kernel(x if heads else x.reshape(1, 1, -1, x.shape[-1]), eps)[0]
        return y if heads else y.view(x.shape)
    wide = x.to(accumulator_precision(x.dtype))
    width = math.prod([x.shape[d] for d in dims])
    # vector_norm has the subgradient 0 at 0, where the gradient of sqrt(mean(x^2)) is 0/0.
    rms_x = torch.linalg.vector_norm(wide, dim=dims, keepdim=True) / math.sqrt(width)  # M2
    return (wide / (rms_x + eps)).to(x.dtype)


def rms(x: Tensor, gain: Tensor, eps: float = 1e-6) -> Tensor:
    """gain * x / sqrt(mean(x^2) + eps) over the last axis, computed in at least float32."""
    wide = x.to(accumulator_precision(x.dtype))
    return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps) * gain).to(x.dtype)
