"""A part of QQP: 20,212 of its pairs, split by seed."""

from linnet.registry import TASK
from linnet.tasks.glue.base import GluePart


@TASK.add("glue/qqp_20k")
class Qqp20k(GluePart):
    """Two classes of pairs."""
