"""TransNormer's Table 9: DiagAttention before NormAttention, or after it."""

from linnet.registry import STUDY
from linnet.studies.ablation import Ablation, ablation_rows, halved_ablation
from linnet.studies.claims import Comparison


@STUDY.add("transnormer-table9")
class Table9(Ablation):
    """T1 and T2, unchanged and with the two halves of their layers swapped."""

    title = "The order of the two attentions: the rows of TransNormer's Table 9"
    item = "Table 9"
    core_hours = 1.2
    rows = tuple(
        row
        for system in ("T2", "T1")
        for rows in (
            ablation_rows(system, system, seeds=3),
            ablation_rows(f"{system}, norm first", system, halved_ablation("norm", "diag"), seeds=3),
        )
        for row in rows
    )
    comparisons = tuple(
        Comparison(f"{system} is better with DiagAttention first", system, f"{system}, norm first")
        for system in ("T2", "T1")
    )
