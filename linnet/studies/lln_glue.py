"""LLN's first table: GLUE with softmax, LLN and LLN+Diag in a RoBERTa."""

from typing import ClassVar

from linnet.registry import STUDY
from linnet.studies.base import LLN
from linnet.studies.claims import Comparison
from linnet.studies.fine_tuned import FineTuned, Plan, encoder_rows, fine_tuned_rows
from linnet.studies.trained import Scale
from linnet.studies.transnormer_table5 import PLANS, SMALL

ENCODERS = (
    *encoder_rows("vanilla", "vanilla"),
    *encoder_rows("lln", "lln"),
    *encoder_rows("lln_diag", "lln_diag"),
    *encoder_rows("Performer", "performer"),
)
TASKS = ("mnli_dev", "qnli_dev", "qqp_20k", "sst2")  # of the paper's four, three in parts
LLN_PLANS = {
    "cpu": PLANS["cpu"]._replace(tasks={task: SMALL[task] for task in TASKS}, scratch=()),
    "paper": Plan({"mnli": 36816, "qnli": 9820, "qqp": 34111, "sst2": 6315}, PLANS["paper"].rates, 1),
}


@STUDY.add("lln-glue")
class LlnGlue(FineTuned):
    """The four tasks of the paper; its rates, epochs and batches are not known to us, so they are TransNormer's."""

    title = "GLUE: softmax, LLN and LLN+Diag, as in LLN's first table"
    paper, item = LLN, "Table 1"
    scales: ClassVar = {
        "cpu": Scale("glue_encoder", "_roberta_small"),
        "paper": Scale("transnormer_roberta", "_roberta"),
    }
    plans = LLN_PLANS
    tuned = fine_tuned_rows(ENCODERS, LLN_PLANS)
    rows = (*ENCODERS, *(one.row for one in tuned))
    averaged = TASKS
    comparisons = (
        Comparison("LLN+Diag is above LLN", "lln", "lln_diag"),
        Comparison("Softmax is above LLN", "lln", "vanilla"),
    )
