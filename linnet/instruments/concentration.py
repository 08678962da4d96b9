"""Biased and unbiased concentration: entropy and spectral gap, which the LLN paper reads as a pair.

Low entropy with a large gap is biased: all queries read the same few tokens. Low entropy with a small gap is unbiased:
each query reads a few tokens of its own.
"""

from typing import ClassVar, NamedTuple

from torch import Tensor

from linnet.instruments.base import DIVIDED, Instrument, View, instrument_view_of_weights
from linnet.instruments.entropy import measure_entropy
from linnet.instruments.spectral_gap import CAUSAL, spectral_gap_of_view
from linnet.registry import INSTRUMENT

HALF = 0.5  # the threshold between low and high, for both


class Concentration(NamedTuple):
    """Entropy as a share of log2 N, and the spectral gap; both have shape (...)."""

    relative: Tensor
    gap: Tensor

    def biased(self) -> Tensor:
        """True where all queries read the same few tokens."""
        return (self.relative < HALF) & (self.gap >= HALF)  # M48

    def unbiased(self) -> Tensor:
        """True where each query reads a few tokens of its own."""
        return (self.relative < HALF) & (self.gap < HALF)  # M48


def concentration(weights: Tensor) -> Concentration:
    """The pair for weights (..., N, N)."""
    return Concentration(
        *(value.reshape(weights.shape[:-2]) for value in _measure_concentration(instrument_view_of_weights(weights)))
    )


def _measure_concentration(view: View) -> Concentration:
    """The pair of a view, (B,H) each."""
    return Concentration(measure_entropy(view)["relative"], spectral_gap_of_view(view))


@INSTRUMENT.add("concentration")
class ConcentrationPair(Instrument):
    """The pair, and how many heads are biased or unbiased."""

    what = "whether few tokens are read, and whether they are the same for all queries (bidirectional)"
    paper = "Linear Log-Normal Attention with Unbiased Concentration, ICLR 2024, arXiv 2311.13541"
    shows: ClassVar = {"biased": "biased heads", "unbiased": "unbiased heads"}

    def refusal(self, view: View) -> str | None:
        return CAUSAL if view.causal else None

    def note(self, view: View) -> str | None:
        if view.signed:
            return "signed weights: entropy of their absolute values, gap of rows divided by their sum"
        return None if view.normalized else DIVIDED

    def measure(self, view: View) -> dict[str, Tensor]:
        found = _measure_concentration(view)
        return {**found._asdict(), "biased": found.biased().double(), "unbiased": found.unbiased().double()}
