"""A part of MNLI: its matched development set, tokenized, split by seed."""

from linnet.registry import TASK
from linnet.tasks.glue.base import GluePart


@TASK.add("glue/mnli_dev")
class MnliDev(GluePart):
    """Three classes of pairs."""
