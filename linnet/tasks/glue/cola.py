"""CoLA: is a sentence acceptable English? Scored by Matthews' correlation."""

from linnet.registry import TASK
from linnet.tasks.glue.base import GlueTask


@TASK.add("glue/cola")
class Cola(GlueTask):
    """Two classes."""
