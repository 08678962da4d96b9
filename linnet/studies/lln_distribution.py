"""LLN's Figure 2, first part: the law of attention weights on Gaussian queries and keys, and moment matching."""

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import ClassVar

from linnet.figures.figure import Figure, Series
from linnet.figures.table import Table
from linnet.instruments.kernel_concentration import gaussian_kernel_inputs, kernel_weights
from linnet.instruments.lognormal_fit import lognormal_fit
from linnet.instruments.moment_matching import calibrate_moment_matching, moment_matching_table
from linnet.registry import STUDY
from linnet.studies.base import LLN
from linnet.studies.records import Record, record_versions
from linnet.studies.untrained import Computed, Progress

BY_SIGMA = (
    *("σ", "σ_q²σ_k²", "Var ln A softmax", "LLN", "LLN, released constants", "skew softmax", "LLN"),
    *("entropy softmax", "LLN", "gap softmax", "LLN"),
)
BY_WIDTH = ("head width", "σ_q²σ_k²", "Var ln A, released constants", "ours", "a", "b", "c₂", "c₁", "c₀")


@STUDY.add("lln-distribution")
class LlnDistribution(Computed):
    """How ln A of softmax and of LLN is distributed, and whether LLN's matching holds, by scale and head width."""

    title = "LLN: the law of attention weights, and moment matching"
    paper, item = LLN, "Figure 2"
    picture = "variance, law and entropy of ln A"
    settings: ClassVar = {"tokens": 1024, "head_dim": 64, "seeds": 2, "calibration_tokens": 512}
    sigmas: ClassVar[Sequence[float]] = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
    widths: ClassVar[Sequence[int]] = (16, 32, 64, 128)

    def compute(self, settings: Mapping[str, int], progress: Progress) -> Record:
        """Matching by scale, quantiles at one scale, and calibrations by width."""
        N, D, seeds = settings["tokens"], settings["head_dim"], settings["seeds"]
        found: Record = {"matching": {}, "quantiles": {}, "widths": []}
        steps = 2 + 2 + len(self.widths)
        for i, match in enumerate(("variance", "paper")):
            found["matching"][match] = moment_matching_table(self.sigmas, N, D, match, seeds)
            progress(i + 1, steps)
        for i, kernel in enumerate(("softmax", "lln")):
            fitted = lognormal_fit(kernel_weights(*gaussian_kernel_inputs(N, D, 0, 1.2), kernel))
            standard = (fitted.quantiles - fitted.mean) / fitted.variance.sqrt()
            found["quantiles"][kernel] = [round(x, 5) for x in standard.tolist()]
            progress(3 + i, steps)
        for i, width in enumerate(self.widths):
            calibration = calibrate_moment_matching(width, settings["calibration_tokens"], seeds)
            (paper,) = moment_matching_table([1.2], N, width, "paper", 1)
            (variance,) = moment_matching_table([1.2], N, width, "variance", 1)
            row = {"paper": paper["lln_row_variance"], "variance": variance["lln_row_variance"]}
            found["widths"].append({**calibration._asdict(), **row, "target": paper["target"]})
            progress(5 + i, steps)
        return found

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per scale, then one per head width."""
        (record,) = records
        matching, settings, rows = record["matching"], record["settings"], []
        for ours, paper in zip(matching["variance"], matching["paper"], strict=True):
            cells = [ours["target"], ours["softmax_row_variance"], ours["lln_row_variance"], paper["lln_row_variance"]]
            cells += [ours[f"{name}_{key}"] for key in ("skew", "entropy", "gap") for name in ("softmax", "lln")]
            rows.append([f"{ours['sigma']:g}", *(f"{x:.3g}" for x in cells)])
        widths = [
            [str(w["head_dim"]), *(f"{w[key]:.3g}" for key in ("target", "paper", "variance"))]
            + [f"{x:.4g}" for x in (*w["line"], *w["parabola"])]
            for w in record["widths"]
        ]
        return [
            Table("by scale", BY_SIGMA, rows),
            "Other head widths at σ = 1.2, and what `calibrate` measures:",
            Table("by head width", BY_WIDTH, widths),
            f"{settings['tokens']:,} tokens, head width {settings['head_dim']}, means of {settings['seeds']} seeds, "
            f"variances along rows, entropies in bits; {record_versions(record['environment'])}. "
            f"Command: `{record['command']}`.",
        ]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """Variance, law and entropy."""
        (record,) = records
        ours, paper = (record["matching"][match] for match in ("variance", "paper"))
        x = [row["target"] for row in ours]
        variance = [
            Series("softmax", x, [row["softmax_row_variance"] for row in ours]),
            Series("LLN", x, [row["lln_row_variance"] for row in ours]),
            Series("LLN, released constants", x, [row["lln_row_variance"] for row in paper]),
        ]
        entropy = [
            Series("softmax", x, [row["softmax_entropy"] for row in ours]),
            Series("LLN", x, [row["lln_entropy"] for row in ours]),
        ]
        normal = [NormalDist().inv_cdf((i + 1) / 100) for i in range(99)]
        law = [Series(name, normal, record["quantiles"][key]) for name, key in (("softmax", "softmax"), ("LLN", "lln"))]
        return [
            Figure("Variance of ln A", "σ_q²σ_k²", "along rows", variance, note=note),
            Figure("Law of ln A at σ = 1.2", "quantile of a normal law", "quantile, standardized", law, note=note),
            Figure("Entropy", "σ_q²σ_k²", "bits", entropy, note=note),
        ]
