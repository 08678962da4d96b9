"""TransNormer's Table 11: the size of DiagAttention's blocks."""

from linnet.registry import STUDY
from linnet.studies.ablation import Ablation, ablation_rows
from linnet.studies.claims import Comparison


@STUDY.add("transnormer-table11")
class Table11(Ablation):
    """Blocks of 32, 64 and 128 tokens; T1 and T2 have 64."""

    title = "The size of blocks: the rows of TransNormer's Table 11"
    item = "Table 11"
    core_hours = 0.16
    rows = tuple(
        row
        for system in ("T2", "T1")
        for rows in (
            ablation_rows(f"{system}, blocks of 32", system, sets=("model.options.diag.block=32",), seeds=3),
            ablation_rows(system, system, seeds=3),
            ablation_rows(f"{system}, blocks of 128", system, sets=("model.options.diag.block=128",), seeds=3),
        )
        for row in rows
    )
    comparisons = tuple(
        Comparison(f"{system} is better with blocks of {large} than of {small}", *pair)
        for system in ("T2", "T1")
        for small, large, pair in (
            (32, 64, (system, f"{system}, blocks of 32")),
            (64, 128, (f"{system}, blocks of 128", system)),
        )
    )
