"""TransNormer's bidirectional language model, which its Table 5 fine-tunes: the pretraining alone."""

from typing import ClassVar

from linnet.registry import STUDY
from linnet.studies.base import TRANSNORMER
from linnet.studies.perplexity import Perplexity
from linnet.studies.systems import SHORT, system
from linnet.studies.trained import Scale


@STUDY.add("transnormer-masked-lm")
class TransnormerMaskedLM(Perplexity):
    """Perplexity per masked token: WikiText-2 on a CPU, WikiText-103 at the paper's size."""

    title = "Masked language modeling: TransNormer, vanilla and 1+elu"
    paper, item = TRANSNORMER, "the pretraining of Table 5"
    core_hours = 0.86
    scales: ClassVar = {
        "cpu": Scale("wikitext2_mlm", "_roberta_small", SHORT),
        "paper": Scale("transnormer_roberta", "_roberta"),
    }
    rows = tuple(map(system, ("T2", "vanilla", "1+elu")))
