"""TransNormer's Table 5: encoders pretrained as masked language models and fine-tuned on GLUE."""

from typing import ClassVar

from linnet.registry import STUDY
from linnet.studies.base import TRANSNORMER
from linnet.studies.claims import Comparison
from linnet.studies.fine_tuned import FineTuned, Plan, encoder_rows, fine_tuned_rows
from linnet.studies.trained import Scale

ENCODERS = (
    *encoder_rows("T1", "transnormer_t1"),
    *encoder_rows("T2", "transnormer_t2"),
    *encoder_rows("vanilla", "vanilla"),
    *encoder_rows("1+elu", "elu"),
    *encoder_rows("Performer", "performer"),
    *encoder_rows("FLASH", "flash"),
    *encoder_rows("Transformer-LS", "long_short"),
    *encoder_rows("lln", "lln"),
    *encoder_rows("lln_diag", "lln_diag"),
    *encoder_rows("norm without LRPE", "norm", ("model.options.norm.positions=none",)),
)
# Three epochs of batches of 32, on a CPU at most 1,500 updates. The paper does not state its batch.
SMALL = {
    "cola": 801,
    "sst2": 1500,
    "mrpc": 344,
    "rte": 234,
    "stsb": 539,
    "qnli_dev": 410,
    "mnli_dev": 736,
    "qqp_20k": 1500,
}
WHOLE = {"mnli": 36816, "qnli": 9820, "qqp": 34111, "sst2": 6315, "mrpc": 344, "cola": 801}
QUIET = ("train.threads=1", "train.warmup=20")
PLANS = {
    "cpu": Plan(SMALL, (1e-4, 3e-4, 1e-3, 3e-3), 3, QUIET, scratch=("T2", "vanilla")),
    "paper": Plan(WHOLE, (1e-5, 3e-5, 6e-5, 1e-4), 1),
}


@STUDY.add("transnormer-table5")
class Table5(FineTuned):
    """The systems of Table 5 and of LLN's first table; parts of tasks stand for those whose training files are large.

    The paper scores MNLI's two development sets; here it is the matched one.
    """

    title = "GLUE: the systems of TransNormer's Table 5"
    paper, item = TRANSNORMER, "Table 5"
    scales: ClassVar = {
        "cpu": Scale("glue_encoder", "_roberta_small"),
        "paper": Scale("transnormer_roberta", "_roberta"),
    }
    plans = PLANS
    tuned = fine_tuned_rows(ENCODERS, PLANS)
    rows = (*ENCODERS, *(one.row for one in tuned))
    averaged = ("cola", "sst2", "mrpc", "rte", "stsb")
    comparisons = tuple(
        Comparison(f"The average of {better} is above that of {worse}", worse, better)
        for better, worse in (
            *(("T1", "vanilla"), ("T2", "vanilla"), ("vanilla", "1+elu"), ("T2", "T2, not pretrained")),
            ("vanilla", "vanilla, not pretrained"),
        )
    )
