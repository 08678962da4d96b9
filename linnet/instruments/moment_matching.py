"""Moment matching: whether a layer's ln A has the variance that softmax over the same q and k would have.

Also its calibration: how the variance of LLN's ln A depends on the deviation of its features, for one head width.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from linnet.attention.projections import check_attention_count
from linnet.instruments.base import Instrument, View
from linnet.instruments.entropy import ABSOLUTE, measure_entropy
from linnet.instruments.kernel_concentration import gaussian_kernel_inputs, kernel_view
from linnet.instruments.lognormal_fit import fit_lognormal_view
from linnet.instruments.spectral_gap import spectral_gap_of_view
from linnet.instruments.temperature import temperature_row_variance, temperature_score_variance
from linnet.registry import INSTRUMENT

LOW, HIGH = 0.5, 5.0  # the range of variances in which the curves are fitted


class Calibration(NamedTuple):
    """Var(ln A) along rows as a function of x = 2 sigma~^2: a x + b, and c2 x^2 + c1 x + c0."""

    head_dim: int
    line: tuple[float, float]  # a, b
    parabola: tuple[float, float, float]  # c2, c1, c0
    line_error: float  # the largest relative error at the fitted points
    parabola_error: float


def calibrate_moment_matching(head_dim: int, tokens: int = 512, seeds: int = 3) -> Calibration:
    """Measure the coefficients for a head width, on Gaussian queries and keys.

    With them, alpha = sigma~ / sigma_q and beta = sigma~ / sigma_k give ln A the variance sigma_q^2 sigma_k^2.
    """
    for name, value in (("head_dim", head_dim), ("tokens", tokens), ("seeds", seeds)):
        check_attention_count(name, value)
    grid = torch.linspace(0.8, 6.0, 40, dtype=torch.float64)
    y = torch.stack([_lln_variance(s, head_dim, tokens, seed) for seed in range(seeds) for s in grid])
    y = y.view(seeds, -1).mean(dim=0)
    kept = (y >= LOW) & (y <= HIGH)
    x, y = 2 * grid[kept].square(), y[kept]
    line, parabola = (_fit(x, y, degree) for degree in (1, 2))  # M47
    errors = [float(((_value(c, x) - y) / y).abs().max()) for c in (line, parabola)]
    return Calibration(head_dim, (line[0], line[1]), (parabola[0], parabola[1], parabola[2]), *errors)


def _lln_variance(deviation: Tensor, D: int, N: int, seed: int) -> Tensor:
    """Row variance of ln A for A_ts = sum_c e^(sigma~ (q_tc + k_sc)) with unit Gaussians."""
    q, k = gaussian_kernel_inputs(N, D, seed)
    logs = ((deviation * q).exp() @ (deviation * k).exp().mT).log()
    return logs.var(dim=-1).mean()


def _fit(x: Tensor, y: Tensor, degree: int) -> list[float]:
    """Coefficients of the polynomial with the least relative squared error, highest power first."""
    powers = torch.stack([x**p for p in range(degree, -1, -1)], dim=1)
    weight = 1 / y[:, None]
    found: list[float] = torch.linalg.lstsq(powers * weight, torch.ones_like(y)[:, None]).solution.flatten().tolist()
    return found


def _value(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """The polynomial at x."""
    total = torch.zeros_like(x)
    for c in coefficients:
        total = total * x + c
    return total


def moment_matching_table(
    sigmas: Sequence[float], tokens: int = 1024, head_dim: int = 64, match: str = "variance", seeds: int = 4
) -> list[dict[str, float]]:
    """For Gaussian q and k of deviation sigma: variance, skew, entropy and gap of softmax beside those of LLN."""
    rows = []
    for sigma in sigmas:
        row = {"sigma": sigma, "target": sigma**4}
        for name in ("softmax", "lln"):
            found = [
                _summary(*gaussian_kernel_inputs(tokens, head_dim, seed, sigma), name, match) for seed in range(seeds)
            ]
            row |= {f"{name}_{key}": sum(f[key] for f in found) / seeds for key in found[0]}
        rows.append(row)
    return rows


def _summary(q: Tensor, k: Tensor, name: str, match: str) -> dict[str, float]:
    """The numbers of one head."""
    view = kernel_view(q, k, name, match)
    fitted = fit_lognormal_view(view)
    values = {
        "variance": fitted.variance,
        "row_variance": temperature_row_variance(view),
        "skew": fitted.skew,
        "ks": fitted.ks,
        "entropy": measure_entropy(view)["bits"],
        "gap": spectral_gap_of_view(view),
    }
    return {key: float(value) for key, value in values.items()}


@INSTRUMENT.add("moment_matching")
class MomentMatching(Instrument):
    """The variance of ln A along rows against sigma_q^2 sigma_k^2."""

    what = "whether ln A has the variance along rows that softmax would have: sigma_q^2 sigma_k^2"
    paper = "Linear Log-Normal Attention with Unbiased Concentration, ICLR 2024, arXiv 2311.13541"
    shows: ClassVar = {"variance": "row Var ln A", "target": "softmax's variance", "ratio": "ratio"}

    def refusal(self, view: View) -> str | None:
        return "this mechanism does not expose its queries and keys" if view.q is None else None

    def note(self, view: View) -> str | None:
        return ABSOLUTE if view.signed else None

    def measure(self, view: View) -> dict[str, Tensor]:
        assert view.q is not None and view.k is not None  # `refusal` has checked
        variance, target = temperature_row_variance(view), temperature_score_variance(view.q, view.k)
        return {"variance": variance, "target": target, "ratio": variance / target}
