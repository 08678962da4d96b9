"""STS-B: how similar are two sentences, from 0 to 5? Scored by Spearman's and Pearson's correlation."""

from linnet.registry import TASK
from linnet.tasks.glue.base import GlueTask


@TASK.add("glue/stsb")
class Stsb(GlueTask):
    """A score of a pair."""
