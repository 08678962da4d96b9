"""TransNormer's Table 4: its systems, and TransNormer's parts, as causal language models."""

from collections.abc import Sequence
from typing import ClassVar

from linnet.registry import STUDY
from linnet.studies.base import TRANSNORMER
from linnet.studies.claims import Claim, Comparison, claims_of_records
from linnet.studies.perplexity import Perplexity, perplexity_of_test
from linnet.studies.records import Record
from linnet.studies.systems import LRPE, SHORT, system, t2_frame_of_systems
from linnet.studies.trained import Row, Scale

T2, VANILLA, FRAMED, ELU = "T2", "vanilla", "vanilla in the T2 frame", "1+elu"
# The paper's code has 64 features and draws new ones in each training forward; it also adds 1e-4 to each feature,
# divides by at least 0.01 and draws rows that are not orthogonal, which linnet does not do.
RELEASED = ("model.options.performer.features=64", "model.options.performer.redraw=true")
CLAIMS = (
    Comparison("TransNormer T2, as a whole, has a lower perplexity than the vanilla transformer", T2, VANILLA),
    Comparison("T2 has a lower perplexity than 1+elu attention", T2, ELU),
    Comparison("The vanilla transformer has a lower perplexity than 1+elu attention", VANILLA, ELU),
    Comparison("T2's attention alone, in the same frame, has a lower perplexity than softmax", T2, FRAMED),
)


@STUDY.add("transnormer-table4")
class Table4(Perplexity):
    """Perplexity of causal language models: WikiText-2 on a CPU, WikiText-103 at the paper's size."""

    title = "Causal language modeling: the systems of TransNormer's Table 4"
    paper, item = TRANSNORMER, "Table 4"
    core_hours = 7.3
    scales: ClassVar = {"cpu": Scale("wikitext2", "_lm_small", SHORT), "paper": Scale("transnormer_lm", "_lm")}
    rows = (
        system(T2, seeds=3),
        system(VANILLA, seeds=3),
        Row("vanilla with LRPE", "vanilla", (LRPE,), seeds=3),
        Row(FRAMED, "vanilla", (LRPE, *t2_frame_of_systems("_lm_small")), seeds=3, scales=("cpu",)),
        Row(FRAMED, "vanilla", (LRPE, *t2_frame_of_systems("_lm")), seeds=3, scales=("paper",)),
        *map(system, (ELU, "T1", "norm only", "diag only", "lln", "lln_diag")),
        *map(system, ("Performer", "cosFormer", "Transformer-LS", "FLASH", "FLASH-quad")),
        Row("Performer as released", "performer", RELEASED),
    )

    def claims(self, records: Sequence[Record]) -> list[Claim]:
        """The order of the paper's rows, and how much of it the attention explains."""
        return claims_of_records(CLAIMS, records, perplexity_of_test)
