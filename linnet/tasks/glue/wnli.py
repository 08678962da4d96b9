"""WNLI: does a sentence with its pronoun replaced follow? Its sets contradict each other by design."""

from linnet.registry import TASK
from linnet.tasks.glue.base import GlueTask


@TASK.add("glue/wnli")
class Wnli(GlueTask):
    """Two classes of pairs."""
