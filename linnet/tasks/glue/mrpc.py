"""MRPC: do two sentences from the news mean the same? Scored by F1 and accuracy."""

from linnet.registry import TASK
from linnet.tasks.glue.base import GlueTask


@TASK.add("glue/mrpc")
class Mrpc(GlueTask):
    """Two classes of pairs."""
