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


@STUDY.add("lln-concentration")
class LlnConcentration(Computed):
    """Five kernels on Gaussian queries and keys."""

    title = "LLN: concentration of kernels against temperature"
    paper, item = LLN, "Figure 2"
    picture = "entropy and gap against temperature"
    settings: ClassVar = {"tokens": 512, "head_dim": 64, "seeds": 2}

    def compute(self, settings: Mapping[str, int], progress: Progress) -> Record:
        """The mean over seeds, of each kernel at each temperature."""
        N, D, seeds = settings["tokens"], settings["head_dim"], settings["seeds"]
        found: Record = {"temperatures": list(TEMPERATURES), "kernels": {}}
        for i, kernel in enumerate(KERNELS):
            runs = [kernel_concentration(*gaussian_kernel_inputs(N, D, seed), kernel) for seed in range(seeds)]
            means = {key: torch.stack([run[key] for run in runs]).mean(dim=0) for key in ("bits", "gap")}
            found["kernels"][kernel] = {key: [round(x, 6) for x in value.tolist()] for key, value in means.items()}
            progress(i + 1, len(KERNELS))
        return found

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """A table each for entropy and gap: one line per kernel, one column per temperature."""
        (record,) = records
        settings, parts = record["settings"], list[Table | str]()
        for key, title in (("bits", "Entropy in bits"), ("gap", "Spectral gap")):
            rows = [[name, *(f"{x:.3f}" for x in record["kernels"][name][key])] for name in KERNELS]
            temperatures = (f"{t:g}" for t in record["temperatures"])
            parts.append(Table(title, [f"{title}, at temperature", *temperatures], rows))
        about = f"{settings['tokens']} tokens, head width {settings['head_dim']}, means of {settings['seeds']} seeds"
        return [*parts, f"{about}; {record_versions(record['environment'])}. Command: `{record['command']}`."]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """The same as two panels."""
        (record,) = records
        x, figures = record["temperatures"], []
        for key, title, label in (("bits", "Entropy", "bits"), ("gap", "Spectral gap", "1 − |λ₂|")):
            series = [Series(name, x, record["kernels"][name][key]) for name in KERNELS]
            figures.append(Figure(title, "temperature", label, series, log_x=True, note=note))
        return figures
