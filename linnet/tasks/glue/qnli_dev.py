"""A part of QNLI: its development set, split by seed."""

from linnet.registry import TASK
from linnet.tasks.glue.base import GluePart


@TASK.add("glue/qnli_dev")
class QnliDev(GluePart):
    """Two classes of pairs."""
