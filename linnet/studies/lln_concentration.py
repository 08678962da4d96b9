"""LLN's Figure 2, second part: entropy and spectral gap of kernels against temperature."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from linnet.figures.figure import Figure, Series
from linnet.figures.table import Table
from linnet.instruments.kernel_concentration import KERNELS, TEMPERATURES, gaussian_kernel_inputs, kernel_concentration
from linnet.registry import STUDY
from linnet.studies.base import LLN
from linnet.studies.records import Record, record_versions
from linnet.studies.untrained import Computed, Progress

KEYS = ("bits", "gap")


@STUDY.add("lln-concentration")
class LlnConcentration(Computed):
    """Five kernels on Gaussian queries and keys."""

    title = "LLN: concentration of kernels against temperature"
    paper, item = LLN, "Figure 2"
    picture = "entropy and gap against temperature"
    settings: ClassVar = {"tokens": 512, "head_dim": 64, "seeds": 50}

    def compute(self, settings: Mapping[str, int], progress: Progress) -> Record:
        """The mean and the standard deviation over seeds, of each kernel at each temperature."""
        N, D, seeds = settings["tokens"], settings["head_dim"], settings["seeds"]
        runs: dict[str, list[dict[str, torch.Tensor]]] = {kernel: [] for kernel in KERNELS}
        for seed in range(seeds):
            q, k = gaussian_kernel_inputs(N, D, seed)
            for kernel in KERNELS:
                runs[kernel].append(kernel_concentration(q, k, kernel))
            progress(seed + 1, seeds)
        kernels = {kernel: {key: _over_seeds(found, key) for key in KEYS} for kernel, found in runs.items()}
        return {"temperatures": list(TEMPERATURES), "kernels": kernels}

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """A table each for entropy and gap: one line per kernel, one column per temperature."""
        (record,) = records
        settings, parts = record["settings"], list[Table | str]()
        for key, title in (("bits", "Entropy in bits"), ("gap", "Spectral gap")):
            rows = [[name, *_cells(record["kernels"][name][key])] for name in KERNELS]
            temperatures = (f"{t:g}" for t in record["temperatures"])
            parts.append(Table(title, [f"{title}, at temperature", *temperatures], rows))
        about = f"{settings['tokens']} tokens, head width {settings['head_dim']}, {settings['seeds']} seeds"
        spread = "each cell is the mean and the standard deviation between seeds"
        return [*parts, f"{about}; {spread}; {record_versions(record['environment'])}. Command: `{record['command']}`."]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """The same as two panels, one standard deviation to each side shaded."""
        (record,) = records
        x, figures = record["temperatures"], []
        for key, title, label in (("bits", "Entropy", "bits"), ("gap", "Spectral gap", "1 − |λ₂|")):
            series = [_line(name, x, record["kernels"][name][key]) for name in KERNELS]
            figures.append(Figure(title, "temperature", label, series, log_x=True, note=note))
        return figures


def _over_seeds(runs: Sequence[Mapping[str, torch.Tensor]], key: str) -> dict[str, list[float]]:
    """Mean and standard deviation over runs, at each temperature."""
    found = torch.stack([run[key] for run in runs])  # (seeds, T)
    numbers = {"mean": found.mean(dim=0), "deviation": found.std(dim=0, correction=int(len(runs) > 1))}
    return {name: [round(x, 6) for x in value.tolist()] for name, value in numbers.items()}


def _cells(found: Mapping[str, Sequence[float]]) -> list[str]:
    return [f"{mean:.3f} ± {dev:.3f}" for mean, dev in zip(found["mean"], found["deviation"], strict=True)]


def _line(name: str, x: Sequence[float], found: Mapping[str, Sequence[float]]) -> Series:
    pairs = list(zip(found["mean"], found["deviation"], strict=True))
    return Series(name, x, found["mean"], [mean - dev for mean, dev in pairs], [mean + dev for mean, dev in pairs])
