"""Concentration against temperature: how a kernel's entropy and gap depend on the scale of queries and keys.

A homogeneous kernel (ReLU, quadratic) gives the same weights at any scale, so training cannot use the scale to
concentrate it.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import elu

from linnet.attention.base import create_attention
from linnet.errors import InputError, LinnetError, unknown_name_error
from linnet.instruments.base import Instrument, View
from linnet.instruments.entropy import measure_entropy
from linnet.instruments.spectral_gap import CAUSAL, spectral_gap_of_view
from linnet.registry import INSTRUMENT

KERNELS = ("softmax", "lln", "elu", "relu", "quadratic")
TEMPERATURES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)


def gaussian_kernel_inputs(N: int, D: int, seed: int, sigma: float = 1.0) -> tuple[Tensor, Tensor]:
    """q and k (N,D) with independent Gaussian entries."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, N, D, dtype=torch.float64, generator=generator) * sigma
    return q, k


def kernel_view(q: Tensor, k: Tensor, kernel: str, match: str = "variance") -> View:
    """A view of a kernel on q, k (N,D); for LLN with its features, which make the gap exact and fast."""
    if kernel not in KERNELS:
        raise unknown_name_error("kernel", kernel, KERNELS)
    q, k = q[None, None], k[None, None]
    shape = (1, 1, q.shape[2])
    if kernel == "lln":
        core = create_attention("lln", heads=1, head_dim=q.shape[3], causal=False, match=match)
        return View(kernel, shape, False, lambda start, stop: core.rows(q, k, start, stop), core, q, k, k)
    return View(kernel, shape, False, lambda start, stop: _rows(q[:, :, start:stop], k, kernel))


def kernel_weights(q: Tensor, k: Tensor, kernel: str) -> Tensor:
    """A (N,N) for q, k (N,D), with rows that sum to one, or to zero for a query that matches no key."""
    return torch.cat([A for _, A in kernel_view(q, k, kernel).rows()], dim=2)[0, 0]


def _rows(q: Tensor, k: Tensor, kernel: str) -> Tensor:
    """The rows of queries (..., R, D) over all keys (..., N, D)."""
    if kernel == "softmax":
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)
    if kernel == "elu":
        A = (elu(q) + 1) @ (elu(k) + 1).mT
    elif kernel == "relu":
        A = q.relu() @ k.relu().mT
    else:
        A = (q @ k.mT).square()
    total = A.sum(dim=-1, keepdim=True)
    return A / total.masked_fill(total == 0, 1)


def kernel_concentration(
    q: Tensor, k: Tensor, kernel: str, temperatures: Sequence[float] = TEMPERATURES
) -> dict[str, Tensor]:
    """Bits and gap (T,) of a kernel on q, k (N,D), scaled so that 1 / (sigma_q sigma_k) is each of `temperatures`.

    A query that matches no key, which ReLU allows, is left out of the bits, and the gap is then NaN.
    """
    if q.dim() != 2 or q.shape != k.shape:
        raise InputError(f"q {tuple(q.shape)}, k {tuple(k.shape)}: both must be (N, D)")
    if not temperatures or min(temperatures) <= 0:
        raise InputError(f"temperatures are {list(temperatures)}: each must be above 0")
    q, k = (x.detach().cpu().double() for x in (q, k))
    q, k = q / q.std(), k / k.std()
    found = []
    for temperature in temperatures:
        scale = temperature**-0.5
        view = kernel_view(q * scale, k * scale, kernel)
        found.append((measure_entropy(view)["bits"].squeeze(), _gap(view)))
    bits, gaps = (torch.stack(values) for values in zip(*found, strict=True))
    return {"bits": bits, "gap": gaps}


def _gap(view: View) -> Tensor:
    """The gap of one head, or NaN if it has none or the iteration does not converge."""
    try:
        return spectral_gap_of_view(view).squeeze()
    except LinnetError:
        return torch.tensor(torch.nan, dtype=torch.float64)


@INSTRUMENT.add("kernel_concentration")
class KernelConcentration(Instrument):
    """Entropy and gap of each kernel on a layer's own q and k, at several scales."""

    what = "entropy and gap of softmax, lln, elu, relu and quadratic kernels on a layer's q and k, by temperature"
    paper = "Linear Log-Normal Attention with Unbiased Concentration, ICLR 2024, arXiv 2311.13541"
    shows: ClassVar = {}
    usual = False  # 45 weight matrices per head

    def refusal(self, view: View) -> str | None:
        if view.q is None:
            return "this mechanism does not expose its queries and keys"
        return CAUSAL if view.causal else None

    def measure(self, view: View) -> dict[str, Tensor]:
        assert view.q is not None and view.k is not None  # `refusal` has checked
        heads = list(zip(view.q.flatten(0, 1), view.k.flatten(0, 1), strict=True))
        found: dict[str, Tensor] = {}
        for kernel in KERNELS:
            curves = [kernel_concentration(q, k, kernel) for q, k in heads]
            for key in ("bits", "gap"):
                found[f"{kernel}_{key}"] = torch.stack([c[key] for c in curves]).unflatten(0, view.shape[:2])
        return found
