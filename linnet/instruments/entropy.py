"""Entropy of attention rows, in bits: how many tokens a query effectively reads."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from linnet.instruments.base import DIVIDED, Instrument, View, instrument_row_mean, instrument_view_of_weights
from linnet.registry import INSTRUMENT

ABSOLUTE = "signed weights: absolute values are measured"


def entropy(weights: Tensor, relative: bool = False) -> Tensor:
    """Mean entropy (...) of the rows of weights (..., N, N) in bits; `relative`: divided by log2 N.

    It is 0 if each query reads one token, and log2 N if it reads all alike. Signed rows count by absolute value.
    """
    found = measure_entropy(instrument_view_of_weights(weights))
    return found["relative" if relative else "bits"].reshape(weights.shape[:-2])


def measure_entropy(view: View) -> dict[str, Tensor]:
    """Entropy in bits, and its share of the largest possible: that of rows which read all visible tokens alike."""
    parts = [torch.special.entr(A).sum(dim=-1) / math.log(2) for _, A in view.positive()]  # M37
    bits = instrument_row_mean(parts)
    most = float(view.seen.log2().mean())
    return {"bits": bits, "relative": bits / most if most else torch.ones_like(bits)}


@INSTRUMENT.add("entropy")
class Entropy(Instrument):
    """Bits per row."""

    what = "how many tokens a query reads: entropy of rows in bits, and as a share of the largest"
    paper = "Linear Log-Normal Attention with Unbiased Concentration, ICLR 2024, arXiv 2311.13541"
    shows: ClassVar = {"bits": "entropy (bits)", "relative": "share of the largest"}

    def note(self, view: View) -> str | None:
        return ABSOLUTE if view.signed else None if view.normalized else DIVIDED

    def measure(self, view: View) -> dict[str, Tensor]:
        return measure_entropy(view)
