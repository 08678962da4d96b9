"""Spectral gap of attention: whether different queries read different tokens, 1 - |second eigenvalue| of A.

If every query reads the same tokens the gap is 1, whatever the entropy; if each reads its own, it is 0.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from linnet.attention.rows import Kernel
from linnet.errors import LinnetError
from linnet.instruments.base import DIVIDED, Instrument, View, instrument_view_of_weights
from linnet.registry import INSTRUMENT

DENSE = 2048  # number of tokens up to which all eigenvalues are computed
ROUNDING = 1e-12
STEPS, CHECK_EVERY, SMALL = 400, 10, 1e-4  # of the Arnoldi iteration
CAUSAL = "the eigenvalues of causal weights are their diagonal, so the gap says nothing about which tokens are read"
SIGNED = "signed rows divided by their sum: an eigenvalue may exceed 1, and the gap is then negative"


def spectral_gap(weights: Tensor) -> Tensor:
    """1 - spectral radius of A - 11^T/N: shape (...) for weights (..., N, N) whose rows sum to one."""
    return spectral_gap_of_view(instrument_view_of_weights(weights)).reshape(weights.shape[:-2])


def spectral_gap_of_view(view: View) -> Tensor:
    """(B,H): from the features of kernel attention, from all eigenvalues up to N = 2,048, by iteration beyond."""
    N, kernel = view.shape[2], None if view.causal else view.kernel
    if kernel is not None and kernel.phi_q.shape[3] < N:
        second = _radius(_deflated(kernel))
    elif N <= DENSE:
        A = torch.cat([A for _, A in view.stochastic()], dim=2)
        second = _radius(A.sub_(1 / N))  # M39, in place to save memory
    else:
        second = arnoldi_spectral_radius(lambda x: spectral_product(view, x) - x.mean(dim=2, keepdim=True), view.shape)
    return torch.where((second - 1).abs() < ROUNDING, 0, 1 - second)


def _radius(A: Tensor) -> Tensor:
    """(B,H): the largest modulus of the eigenvalues of A (B,H,N,N)."""
    _check_rows(A)
    return torch.stack([torch.linalg.eigvals(a).abs().amax() for a in A.flatten(0, 1)]).reshape(A.shape[:2])


def _check_rows(values: Tensor) -> None:
    """Raise if a row sums to 0: a stochastic matrix has no such row."""
    if not bool(values.isfinite().all()):
        raise LinnetError("a row of the weights sums to 0, so there is no spectral gap")


def _deflated(kernel: Kernel) -> Tensor:
    """(B,H,F,F) with the nonzero eigenvalues of diag(A 1)^-1 A for A = phi_q phi_k^T, and 0 in place of the 1."""
    scale = kernel.phi_k.abs().amax(dim=2, keepdim=True).clamp(min=1e-300)
    phi_q, phi_k = kernel.phi_q * scale, kernel.phi_k / scale  # the same products, with all channels of similar size
    z = phi_k.sum(dim=2)[..., None]  # (B, H, F, 1): the eigenvector of the eigenvalue 1
    M = phi_k.mT @ (phi_q / (phi_q @ z))
    return M - z @ z.mT / z.square().sum(dim=2, keepdim=True)  # M40


def spectral_product(view: View, x: Tensor) -> Tensor:
    """A x for x (B,H,N,1), with rows of A divided by their sum; uses the mechanism's fast form if it has one."""
    if view.core is not None and view.q is not None and view.k is not None:
        q, k = view.q.double(), view.k.double()
        both = torch.cat([x, torch.ones_like(x)], dim=3).to(q.device)  # the second column is the sum of the row
        both = pad(both, (0, max(0, q.shape[3] - 2)))  # torch's fused softmax needs values as wide as keys
        with torch.no_grad():
            where = view.core.layout(q, k, both, None, None)
            y = view.core.attend(q, k, both, where, view.causal)[..., :2].cpu().double()
        return y[..., :1] / y[..., 1:]
    return torch.cat([A @ x for _, A in view.stochastic()], dim=2)


def arnoldi_spectral_radius(apply: Callable[[Tensor], Tensor], shape: tuple[int, int, int]) -> Tensor:
    """(B,H): the largest modulus of the eigenvalues of a linear map on (B,H,N,1), by Arnoldi iteration."""
    B, H, N = shape
    start = torch.randn(N, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    V = [(start / start.norm()).expand(B, H, N, 1)]
    h = torch.zeros(B, H, STEPS + 1, STEPS, dtype=torch.float64)
    for j in range(min(STEPS, N)):
        w, basis = apply(V[j]), torch.cat(V, dim=3)  # (B, H, N, j + 1)
        _check_rows(w)
        for _ in range(2):  # one pass of Gram-Schmidt is not enough in floating point
            along = basis.mT @ w
            w = w - basis @ along
            h[:, :, : j + 1, j] += along.squeeze(3)
        norm = w.norm(dim=(2, 3))
        more = norm > ROUNDING  # otherwise the space is invariant, and w is only rounding
        h[:, :, j + 1, j] = torch.where(more, norm, 0)
        V.append(torch.where(more[..., None, None], w / norm[..., None, None], 0))
        if j % CHECK_EVERY == CHECK_EVERY - 1 or j == min(STEPS, N) - 1 or not bool(more.any()):
            values, vectors = torch.linalg.eig(h[:, :, : j + 1, : j + 1])
            top = values.abs().argmax(dim=-1, keepdim=True)
            last = vectors[:, :, -1].abs().gather(2, top)  # of eigenvectors of norm 1
            residual = h[:, :, j + 1, j, None] * last
            if float(residual.max()) <= SMALL:
                return values.abs().gather(2, top).squeeze(2)
    raise LinnetError(f"no spectral gap after {STEPS} steps: the residual is still {float(residual.max()):.1e}")


@INSTRUMENT.add("spectral_gap")
class SpectralGap(Instrument):
    """1 - |second eigenvalue|, of bidirectional attention."""

    what = "whether queries read different tokens: 1 minus the second eigenvalue's modulus (bidirectional)"
    paper = "Linear Log-Normal Attention with Unbiased Concentration, ICLR 2024, arXiv 2311.13541"
    shows: ClassVar = {"gap": "spectral gap"}

    def refusal(self, view: View) -> str | None:
        return CAUSAL if view.causal else None

    def note(self, view: View) -> str | None:
        return SIGNED if view.signed else None if view.normalized else DIVIDED

    def measure(self, view: View) -> dict[str, Tensor]:
        return {"gap": spectral_gap_of_view(view)}
