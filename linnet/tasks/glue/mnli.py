"""MNLI: does a premise entail or contradict a hypothesis, or neither? Scored on the matched development set."""

from linnet.registry import TASK
from linnet.tasks.glue.base import GlueTask


@TASK.add("glue/mnli")
class Mnli(GlueTask):
    """Three classes of pairs."""
