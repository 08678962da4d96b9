"""The pseudo-inverse of small matrices by matrix products alone, as Nystrom attention uses it."""

import torch
from torch import Tensor


def pseudo_inverse(A: Tensor, steps: int) -> Tensor:
    """Z, which converges to the pseudo-inverse of A (..., m, m) as `steps` grows, from each matrix's own norms.

    One step takes x = s z, for a singular value s of A, to 1 - (1 - x)^3 (4 - x) / 4. That converges cubically near 1
    and multiplies by 13/4 near 0, so values below 3.25^(-steps / 2) of the largest count as nearly 0.
    """
    shape = A.shape
    norms = A.abs().sum(dim=-1).amax(dim=-1) * A.abs().sum(dim=-2).amax(dim=-1)  # at least the largest s, squared
    Z = A.mT / norms.clamp(min=torch.finfo(A.dtype).tiny)[..., None, None]
    A, Z = (x.reshape(-1, *shape[-2:]) for x in (A, Z))
    for _ in range(steps):  # Z <- Z (13 - AZ (15 - AZ (7 - AZ))) / 4, each bracket inside the product that follows it
        AZ = A @ Z
        X = torch.baddbmm(AZ, AZ, AZ, beta=1.75, alpha=-0.25)
        X = torch.baddbmm(AZ, AZ, X, beta=3.75, alpha=-1)
        Z = torch.baddbmm(Z, Z, X, beta=3.25, alpha=-1)  # M22
    return Z.view(shape)
