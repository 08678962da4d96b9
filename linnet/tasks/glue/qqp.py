"""QQP: do two questions of Quora ask the same? Scored by F1 and accuracy."""

from linnet.registry import TASK
from linnet.tasks.glue.base import GlueTask


@TASK.add("glue/qqp")
class Qqp(GlueTask):
    """Two classes of pairs."""
