"""TransNormer's Table 12: ways to combine the two attentions, in layers of their own or in the same layer."""

from linnet.registry import STUDY
from linnet.studies.ablation import Ablation, Layers, ablation_rows, uniform_ablation
from linnet.studies.claims import Comparison

WAYS: dict[str, Layers] = {
    "alternating": lambda L: ["diag", "norm"] * (L // 2),
    "concatenated": uniform_ablation("diag|norm"),
    "averaged": uniform_ablation("diag+norm"),
    "diag into norm": uniform_ablation("diag>norm"),
    "norm into diag": uniform_ablation("norm>diag"),
}


@STUDY.add("transnormer-table12")
class Table12(Ablation):
    """T1 and T2 as they are, with alternating layers, and with both attentions in every layer.

    In parallel the paper concatenates and its code averages. A layer with both has more parameters if it averages or
    chains.
    """

    title = "Ways to combine the two attentions: the rows of TransNormer's Table 12"
    item = "Table 12"
    core_hours = 0.42
    rows = tuple(
        row
        for system in ("T2", "T1")
        for rows in (
            ablation_rows(system, system, seeds=3),
            *(ablation_rows(f"{system}, {way}", system, layers, seeds=3) for way, layers in WAYS.items()),
        )
        for row in rows
    )
    comparisons = tuple(
        Comparison(f"{system} is better than with its attentions {way}", system, f"{system}, {way}")
        for system in ("T2", "T1")
        for way in WAYS
    )
