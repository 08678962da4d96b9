"""TransNormer's Table 7 on one footing: every system on torch alone, without linnet's kernels."""

import os

from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies.records import Record
from linnet.studies.transnormer_table7 import Table7


@STUDY.add("transnormer-table7-torch")
class Table7Torch(Table7):
    """The measurement of Table 7 with the backend `torch`, which every mechanism has; not all have kernels."""

    title = "Speed and memory of the Long Range Arena's models on torch alone: TransNormer's Table 7"
    picture = "steps per second against tokens, on torch alone"

    def result(self, run: str, screen: Screen) -> Record:
        """All systems at one length."""
        before = os.environ.get("LINNET_BACKEND")
        os.environ["LINNET_BACKEND"] = "torch"  # also reaches the processes that measure memory
        try:
            return {**super().result(run, screen), "backend": "torch"}
        finally:
            del os.environ["LINNET_BACKEND"]
            if before is not None:
                os.environ["LINNET_BACKEND"] = before
