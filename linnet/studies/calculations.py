"""Results that need no training: LLN's law and concentration on Gaussian queries and keys, computed by one command."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from linnet import __version__
from linnet.errors import unknown
from linnet.instruments.kernel_concentration import (
    KERNELS,
    TEMPERATURES,
    gaussian,
    kernel_concentration,
    kernel_weights,
)
from linnet.instruments.lognormal_fit import lognormal_fit
from linnet.instruments.moment_matching import calibrate, matching_table

Record = dict[str, Any]
Progress = Callable[[int, int], None]
SIGMAS = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
WIDTHS = (16, 32, 64, 128)


@dataclass(frozen=True)
class Calculation:
    """A table of numbers that are computed, not trained."""

    title: str
    settings: Mapping[str, int]
    compute: Callable[[Mapping[str, int], Progress], Record]


def distribution(settings: Mapping[str, int], progress: Progress) -> Record:
    """How ln A of softmax and of LLN is distributed, and whether LLN's matching holds, by scale and head width."""
    N, D, seeds = settings["tokens"], settings["head_dim"], settings["seeds"]
    found: Record = {"matching": {}, "quantiles": {}, "widths": []}
    steps = 2 + 2 + len(WIDTHS)
    for i, match in enumerate(("variance", "paper")):
        found["matching"][match] = matching_table(SIGMAS, N, D, match, seeds)
        progress(i + 1, steps)
    for i, kernel in enumerate(("softmax", "lln")):
        fitted = lognormal_fit(kernel_weights(*gaussian(N, D, 0, 1.2), kernel))
        standard = (fitted.quantiles - fitted.mean) / fitted.variance.sqrt()
        found["quantiles"][kernel] = [round(x, 5) for x in standard.tolist()]
        progress(3 + i, steps)
    for i, width in enumerate(WIDTHS):
        calibration = calibrate(width, settings["calibration_tokens"], seeds)
        (paper,) = matching_table([1.2], N, width, "paper", 1)
        (variance,) = matching_table([1.2], N, width, "variance", 1)
        row = {"paper": paper["lln_row_variance"], "variance": variance["lln_row_variance"], "target": paper["target"]}
        found["widths"].append({**calibration._asdict(), **row})
        progress(5 + i, steps)
    return found


def concentration(settings: Mapping[str, int], progress: Progress) -> Record:
    """Entropy and spectral gap of five kernels against temperature."""
    N, D, seeds = settings["tokens"], settings["head_dim"], settings["seeds"]
    found: Record = {"temperatures": list(TEMPERATURES), "kernels": {}}
    for i, kernel in enumerate(KERNELS):
        runs = [kernel_concentration(*gaussian(N, D, seed), kernel) for seed in range(seeds)]
        means = {key: torch.stack([run[key] for run in runs]).mean(dim=0) for key in ("bits", "gap")}
        found["kernels"][kernel] = {key: [round(x, 6) for x in value.tolist()] for key, value in means.items()}
        progress(i + 1, len(KERNELS))
    return found


CALCULATIONS = {
    "lln-distribution": Calculation(
        "LLN: the law of attention weights, and moment matching",
        {"tokens": 1024, "head_dim": 64, "seeds": 2, "calibration_tokens": 512},
        distribution,
    ),
    "lln-concentration": Calculation(
        "LLN: concentration of kernels against temperature", {"tokens": 512, "head_dim": 64, "seeds": 2}, concentration
    ),
}


def calculate(name: str, progress: Progress) -> Record:
    """One record: the numbers, and what they depend on."""
    if name not in CALCULATIONS:
        raise unknown("calculation", name, CALCULATIONS)
    calculation = CALCULATIONS[name]
    return {
        "study": name,
        "command": f"linnet reproduce {name}",
        "settings": dict(calculation.settings),
        "environment": {"linnet": __version__, "torch": torch.__version__},
        **calculation.compute(calculation.settings, progress),
    }
