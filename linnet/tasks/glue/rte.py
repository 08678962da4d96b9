"""RTE: does a text entail a sentence?"""

from linnet.registry import TASK
from linnet.tasks.glue.base import GlueTask


@TASK.add("glue/rte")
class Rte(GlueTask):
    """Two classes of pairs."""
