"""The pseudo-inverse of small matrices by matrix products alone, as Nystrom attention uses it."""

import torch
from torch import Tensor


def pseudo_inverse(A: Tensor, steps: int) -> Tensor:
    """Z, which converges to the pseudo-inverse of A (..., m, m) as `steps` grows, from each matrix's own norms.

    One step takes x = s z, for a singular value s of A, to 1 - (1 - x)^3 (4 - x) / 4. That converges cubically near 1
    and multiplies by 13/4 near 0, so values below 3.25^(-steps / 2) of the largest count as nearly 0.
    """
    norms = A.abs().sum(dim=-1).amax(dim=-1) * A.abs().sum(dim=-2).amax(dim=-1)  # at least the largest s, squared
    Z = A.mT / norms.clamp(min=torch.finfo(A.dtype).tiny)[..., None, None]
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    for _ in range(steps):
        AZ = A @ Z
        Z = Z @ (3.25 * eye - AZ @ (3.75 * eye - AZ @ (1.75 * eye - AZ / 4)))  # M22
    return Z
