"""QNLI: does a sentence answer a question?"""

from linnet.registry import TASK
from linnet.tasks.glue.base import GlueTask


@TASK.add("glue/qnli")
class Qnli(GlueTask):
    """Two classes of pairs."""
