"""SST-2: is a phrase of a film review positive?"""

from linnet.registry import TASK
from linnet.tasks.glue.base import GlueTask


@TASK.add("glue/sst2")
class Sst2(GlueTask):
    """Two classes."""
