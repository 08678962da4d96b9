"""TransNormer's Table 2 with masked models that differ in their attention alone, as its RoBERTa-like models do."""

from collections.abc import Sequence
from typing import ClassVar

from linnet.registry import STUDY
from linnet.studies.ablation import SCALES, SCORED, SHARED, ablation_rows, norm_ablation_rows
from linnet.studies.claims import Claim, Comparison, claims_of_records
from linnet.studies.records import Record
from linnet.studies.transnormer_table2 import Table2, table2_after_warmup

ELU, VANILLA, NORM = "1+elu", "vanilla", "NormAttention"
COMPARISONS = (
    Comparison("Gradients of softmax attention vary less than those of 1+elu", VANILLA, ELU),
    Comparison("Gradients of NormAttention vary less than those of 1+elu", NORM, ELU),
    Comparison("Gradients of NormAttention vary less than those of softmax", NORM, VANILLA),
)


@STUDY.add("transnormer-table2-bidirectional")
class Table2Bidirectional(Table2):
    """Vanilla's frame without relative positions for all; the claims are also judged without the warm-up."""

    title = "Relative standard deviation of gradients of masked models, as in TransNormer's Table 2"
    core_hours = 0.087
    scales: ClassVar = SCALES
    shared = SHARED
    scored_batches = SCORED
    rows = (
        *ablation_rows(VANILLA, VANILLA, seeds=3),
        *ablation_rows(ELU, ELU, seeds=3),
        *norm_ablation_rows(seeds=3),
        *ablation_rows("Performer", "Performer"),
    )
    comparisons = COMPARISONS

    def claims(self, records: Sequence[Record]) -> list[Claim]:
        """Each claim over all updates, then over those after the warm-up."""
        again = [claim._replace(statement=f"{claim.statement}, after the warm-up") for claim in COMPARISONS]
        return [*super().claims(records), *claims_of_records(again, records, table2_after_warmup, digits=3)]
