"""TransNormer's Table 10: a gated FFN or a plain one of the same size."""

from linnet.registry import STUDY
from linnet.studies.ablation import Ablation, ablation_rows
from linnet.studies.claims import Comparison

LAYER_NORM = ("model.norm=layer",)


@STUDY.add("transnormer-table10")
class Table10(Ablation):
    """T1 and T2 with a GLU, with an FFN, and with an FFN and LayerNorm, as the released code compares them."""

    title = "Gated or plain FFN: the rows of TransNormer's Table 10"
    item = "Table 10"
    core_hours = 0.16
    rows = tuple(
        row
        for system in ("T2", "T1")
        for rows in (
            ablation_rows(system, system, seeds=3),
            ablation_rows(f"{system}, FFN", system, ffn="ffn", seeds=3),
            ablation_rows(f"{system}, FFN and LayerNorm", system, sets=LAYER_NORM, ffn="ffn", seeds=3),
        )
        for row in rows
    )
    comparisons = tuple(
        Comparison(f"{system} is better with a GLU than with an FFN", system, f"{system}, FFN")
        for system in ("T2", "T1")
    )
