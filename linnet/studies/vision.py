"""Do dilution and concentration hold for images? Vision transformers on CIFAR-10, one mechanism each."""

from typing import ClassVar

from linnet.registry import STUDY
from linnet.studies.pictured import FIRST, Pictured, picture_rows
from linnet.studies.trained import Scale

SHORT = (
    "train.steps=600",
    "train.warmup=60",
    "train.eval_every=150",
    "train.eval_batches=16",
    "train.save_every=150",
)


@STUDY.add("vision")
class Vision(Pictured):
    """TransNormer leaves vision to future work; this study asks the paper's question about images."""

    title = "Dilution and concentration on images: CIFAR-10"
    paper, item = "linnet", "vision"
    data = "CIFAR-10 in color"
    scales: ClassVar = {"cpu": Scale("cifar10", "_vit_small", SHORT)}
    core_hours = 0.53
    rows = picture_rows(*FIRST)
