"""TransNormer's Figure 2 with masked models, and with NormAttention in the frame of the attentions beside it."""

from typing import ClassVar

from linnet.registry import STUDY
from linnet.studies.ablation import SCALES, SCORED, SHARED, ablation_rows, norm_ablation_rows, uniform_ablation
from linnet.studies.claims import Comparison
from linnet.studies.transnormer_figure2 import Figure2
from linnet.studies.transnormer_table3 import ELU as ELU_LRPE
from linnet.studies.transnormer_table3 import LRPE
from linnet.studies.transnormer_table3 import VANILLA as VANILLA_LRPE

ELU, VANILLA, NORM, T2 = "1+elu", "vanilla", "NormAttention", "T2"
NORM_LRPE = "NormAttention with LRPE"


@STUDY.add("transnormer-figure2-bidirectional")
class Figure2Bidirectional(Figure2):
    """Softmax, 1+elu and NormAttention differ in the attention alone, without positions and with LRPE."""

    title = "Attention dilution in masked models, as in TransNormer's Figure 2"
    core_hours = 0.25
    scales: ClassVar = SCALES
    shared = SHARED
    scored_batches = SCORED
    rows = (
        *ablation_rows(VANILLA, VANILLA, seeds=3),
        *ablation_rows(ELU, ELU, seeds=3),
        *norm_ablation_rows(seeds=3),
        *ablation_rows(VANILLA_LRPE, VANILLA, sets=LRPE, seeds=3),
        *ablation_rows(ELU_LRPE, ELU, sets=LRPE, seeds=3),
        *ablation_rows(NORM_LRPE, ELU, uniform_ablation("norm"), ("model.options.norm.positions=lrpe",), seeds=3),
        *ablation_rows(T2, T2, seeds=3),
        *ablation_rows("T1", "T1", seeds=3),
        *ablation_rows("T2, no diag", T2, uniform_ablation("norm"), seeds=3),
    )
    comparisons = (
        Comparison("Softmax attention is more local than 1+elu, which dilutes", VANILLA, ELU),
        Comparison("NormAttention, in the same frame, is more local than 1+elu", NORM, ELU),
        Comparison("Softmax attention is more local than 1+elu, both with LRPE", VANILLA_LRPE, ELU_LRPE),
        Comparison("NormAttention is more local than 1+elu, both with LRPE", NORM_LRPE, ELU_LRPE),
        Comparison("With LRPE, 1+elu is more local than without", ELU_LRPE, ELU),
        Comparison("TransNormer T2, as a whole, is more local than 1+elu", T2, ELU),
    )
