"""LLN's vision transformer on Dogs vs Cats: at 64 x 64 pixels on a CPU, at the paper's size on a GPU."""

from typing import ClassVar

from linnet.registry import STUDY
from linnet.studies.base import LLN
from linnet.studies.pictured import FIRST, SYSTEMS, Pictured, picture_rows
from linnet.studies.trained import Scale
from linnet.studies.vision import SHORT


@STUDY.add("lln-vit")
class LlnVit(Pictured):
    """Two classes, heads of width 16, as in LLN's experiment."""

    title = "LLN's vision transformer: Dogs vs Cats"
    paper, item = LLN, "ViT, Dogs vs Cats"
    data = "Dogs vs Cats at 64 x 64 pixels"
    scales: ClassVar = {
        "cpu": Scale("dogs_vs_cats", "_vit_small", SHORT),
        "paper": Scale("lln_vit", "_vit"),
    }
    rows = (*picture_rows(*FIRST), *picture_rows(*(name for name in SYSTEMS if name not in FIRST), scales=("paper",)))
