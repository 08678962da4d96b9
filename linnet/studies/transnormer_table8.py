"""TransNormer's Table 8: how many of the layers are DiagAttention, before NormAttention."""

from linnet.registry import STUDY
from linnet.studies.ablation import Ablation, Layers, ablation_rows
from linnet.studies.claims import Comparison
from linnet.studies.trained import Row

SHARES = {0: "no diag", 1: "a quarter diag", 3: "three quarters diag", 4: "all diag"}  # half: the system itself


def _first(quarters: int) -> Layers:
    """This many quarters of the layers are `diag`, the rest `norm`."""
    return lambda L: ["diag"] * (quarters * L // 4) + ["norm"] * (L - quarters * L // 4)


def _rows(system: str) -> tuple[Row, ...]:
    """Five shares, with three seeds each."""
    found = [ablation_rows(system, system, seeds=3)]
    for quarters, share in SHARES.items():
        found.insert(quarters, ablation_rows(f"{system}, {share}", system, _first(quarters), seeds=3))
    return tuple(row for rows in found for row in rows)


@STUDY.add("transnormer-table8")
class Table8(Ablation):
    """0 to 4 of 4 layers at the CPU scale, 0 to 12 of 12 at the paper's; half is T1 and T2 as they are."""

    title = "The number of DiagAttention layers: the rows of TransNormer's Table 8"
    item = "Table 8"
    core_hours = 2.2
    rows = (*_rows("T2"), *_rows("T1"))
    comparisons = tuple(
        Comparison(f"{system} with half of its layers DiagAttention is better than with {share}", system, other)
        for system in ("T2", "T1")
        for share, other in (("none", f"{system}, no diag"), ("all", f"{system}, all diag"))
    )
