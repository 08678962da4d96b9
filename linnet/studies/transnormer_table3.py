"""TransNormer's Table 3: softmax in the early layers or in the late ones, 1+elu in the others."""

from linnet.registry import STUDY
from linnet.studies.ablation import Ablation, ablation_rows, halved_ablation
from linnet.studies.claims import Comparison

ELU, VANILLA = "1+elu with LRPE", "vanilla with LRPE"
EARLY, LATE = "vanilla, then 1+elu, with LRPE", "1+elu, then vanilla, with LRPE"
LRPE = ("model.options.softmax.positions=lrpe", "model.options.elu.positions=lrpe")


@STUDY.add("transnormer-table3")
class Table3(Ablation):
    """Halves of the layers, in vanilla's frame; all have LRPE, without which softmax learns too slowly here."""

    title = "Softmax in early or late layers: the rows of TransNormer's Table 3"
    item = "Table 3"
    core_hours = 0.16
    rows = (
        *ablation_rows(ELU, "1+elu", sets=LRPE, seeds=3),
        *ablation_rows(LATE, "vanilla", halved_ablation("elu", "softmax"), LRPE, seeds=3),
        *ablation_rows(EARLY, "vanilla", halved_ablation("softmax", "elu"), LRPE, seeds=3),
        *ablation_rows(VANILLA, "vanilla", sets=LRPE, seeds=3),
    )
    comparisons = (
        Comparison("Softmax in the early layers is better than 1+elu in all", EARLY, ELU),
        Comparison("Softmax in the early layers is better than in the late ones", EARLY, LATE),
        Comparison("Softmax in all layers is better than 1+elu in all", VANILLA, ELU),
    )
