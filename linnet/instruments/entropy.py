"""Entropy of attention rows: how many tokens a query really reads, in bits."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from linnet.instruments.base import DIVIDED, Instrument, View, mean_of_rows, of_weights
from linnet.registry import INSTRUMENT

ABSOLUTE = "signed weights: of their absolute values"


def entropy(weights: Tensor, relative: bool = False) -> Tensor:
    """Mean entropy (...) of the rows of weights (..., N, N) in bits; `relative`: divided by log2 N.

    0 where each query reads one token, log2 N where it reads all alike. Of signed rows: that of their absolute values.
    """
    found = measure_entropy(of_weights(weights))
    return found["relative" if relative else "bits"].reshape(weights.shape[:-2])


def measure_entropy(view: View) -> dict[str, Tensor]:
    """Bits, and the share of the entropy of rows that read all that they see alike, log2 N where bidirectional."""
    parts = [torch.special.entr(A).sum(dim=-1) / math.log(2) for _, A in view.positive()]  # M37
    bits = mean_of_rows(parts)
    most = float(view.seen.log2().mean())
    return {"bits": bits, "relative": bits / most if most else torch.ones_like(bits)}


@INSTRUMENT.add("entropy")
class Entropy(Instrument):
    """Bits a row."""

    what = "how many tokens a query reads: entropy of rows in bits, and of what it could be"
    paper = "Linear Log-Normal Attention with Unbiased Concentration, ICLR 2024, arXiv 2311.13541"
    shows: ClassVar = {"bits": "entropy (bits)", "relative": "share of the largest"}

    def note(self, view: View) -> str | None:
        return ABSOLUTE if view.signed else None if view.normalized else DIVIDED

    def measure(self, view: View) -> dict[str, Tensor]:
        return measure_entropy(view)
