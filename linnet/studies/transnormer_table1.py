"""TransNormer's Table 1: linear attention with its denominator, without it, and with a norm in its place."""

from linnet.registry import STUDY
from linnet.studies.ablation import Ablation, ablation_rows, norm_ablation_rows, uniform_ablation
from linnet.studies.claims import Comparison

ELU, BARE, NORM = "1+elu", "1+elu without denominator", "NormAttention"
ALL_NORM = "T2, no diag"  # NormAttention in all layers of T2
LRPE = ("model.options.elu.positions=lrpe",)
UNDIVIDED = "model.options.elu.normalize=false"


@STUDY.add("transnormer-table1")
class Table1(Ablation):
    """Three forms in vanilla's frame without relative positions, and again in T2's frame with LRPE."""

    title = "Scaling of linear attention: the rows of TransNormer's Table 1"
    item = "Table 1"
    core_hours = 0.33
    rows = (
        *ablation_rows(ELU, "1+elu", seeds=3),
        *ablation_rows(BARE, "1+elu", sets=(UNDIVIDED,), seeds=3),
        *norm_ablation_rows(seeds=3),
        *ablation_rows(f"{ELU}, T2 frame", "T2", uniform_ablation("elu"), LRPE, seeds=3),
        *ablation_rows(f"{BARE}, T2 frame", "T2", uniform_ablation("elu"), (*LRPE, UNDIVIDED), seeds=3),
        *ablation_rows(ALL_NORM, "T2", uniform_ablation("norm"), seeds=3),
    )
    comparisons = (
        Comparison("Linear attention without its denominator is worse than with it", ELU, BARE),
        Comparison("NormAttention is better than 1+elu", NORM, ELU),
        Comparison(
            "Linear attention without its denominator is worse than with it, in T2's frame with LRPE",
            f"{ELU}, T2 frame",
            f"{BARE}, T2 frame",
        ),
        Comparison("NormAttention is better than 1+elu, in T2's frame with LRPE", ALL_NORM, f"{ELU}, T2 frame"),
    )
