"""A small real stand-in for LRA Retrieval: does one paper cite the other, among 1,669 of the ACL Anthology?"""

from pathlib import Path

from linnet.data.lra.retrieval import Pairs, default_retrieval_path, read_small_retrieval
from linnet.registry import TASK
from linnet.tasks.lra.base import LraData
from linnet.tasks.lra.retrieval import PairsTask


@TASK.add("lra/retrieval_small")
class RetrievalSmall(PairsTask):
    """The same model and task; its scores are not comparable to those of LRA Retrieval."""

    @staticmethod
    def places(data: LraData) -> dict[str, Path]:
        """The folder of the papers in LINNET_DATA."""
        return {} if data.path is not None else {"path": default_retrieval_path()}

    def read_pairs(self) -> dict[str, Pairs]:
        """`data.variant` is the seed of the splits and of the pairs without a citation."""
        data = self.data
        self.work("reading the papers")(0, 1)
        return read_small_retrieval(Path(data.path or default_retrieval_path()), data.context, data.variant)
