"""Temperature of attention: one over the spread of ln A along rows; a high temperature means flat rows."""

from typing import ClassVar

import torch
from torch import Tensor

from linnet.errors import InputError
from linnet.instruments.base import Instrument, View, instrument_view_of_weights
from linnet.instruments.entropy import ABSOLUTE
from linnet.registry import INSTRUMENT

FLAT = 1e-20  # below this, a variance is only rounding


def temperature(weights: Tensor) -> Tensor:
    """1 / std (...) of ln A along the rows of weights (..., N, N); infinite if all rows are flat.

    Weights of 0, such as masked ones, are left out. Signed rows count by absolute value.
    """
    return temperature_row_variance(instrument_view_of_weights(weights)).rsqrt().reshape(weights.shape[:-2])


def temperature_of(q: Tensor, k: Tensor) -> Tensor:
    """1 / (sigma_q sigma_k) for queries and keys (..., N, D): the temperature of a softmax over them."""
    if q.shape != k.shape or q.dim() < 2:
        raise InputError(f"q {tuple(q.shape)}, k {tuple(k.shape)}: both must have the same shape (..., N, D)")
    return temperature_score_variance(q, k).rsqrt()


def temperature_score_variance(q: Tensor, k: Tensor) -> Tensor:
    """sigma_q^2 sigma_k^2 (...), the variance of q.k / sqrt(D) for independent queries and keys."""
    sigma_q, sigma_k = (x.detach().cpu().double().flatten(-2).std(dim=-1) for x in (q, k))
    return (sigma_q * sigma_k).square()  # M38


def temperature_row_variance(view: View) -> Tensor:
    """(B,H): variance of ln |A| within rows, over all rows; each row has its own mean, and zeros are left out."""
    B, H, _ = view.shape
    squares, freedom = torch.zeros(2, B, H, dtype=torch.float64).unbind()
    for _, A in view.rows():
        there = A != 0
        logs = torch.where(there, A.abs(), 1).log()
        count = there.sum(dim=-1)
        mean = logs.sum(dim=-1, keepdim=True) / count.clamp(min=1)[..., None]
        squares = squares + torch.where(there, logs - mean, 0).square().sum(dim=(-1, -2))
        freedom = freedom + (count - 1).clamp(min=0).sum(dim=-1)
    variance = squares / freedom  # M38; NaN if each row has one weight, which has no spread
    return torch.where(variance < FLAT, 0, variance)


@INSTRUMENT.add("temperature")
class Temperature(Instrument):
    """1 / std of ln A along rows, and the value that q and k predict."""

    what = "one over the deviation of ln A along rows, and 1/(sigma_q sigma_k)"
    paper = "Linear Log-Normal Attention with Unbiased Concentration, ICLR 2024, arXiv 2311.13541"
    shows: ClassVar = {"weights": "temperature", "qk": "temperature of q, k"}

    def note(self, view: View) -> str | None:
        return ABSOLUTE if view.signed else None

    def measure(self, view: View) -> dict[str, Tensor]:
        found = {"weights": temperature_row_variance(view).rsqrt()}
        if view.q is not None and view.k is not None:
            found["qk"] = temperature_of(view.q, view.k)
        return found
