"""TransNormer's Figure 1: accuracy on the Long Range Arena against training speed; the area of a circle is memory."""

from collections.abc import Mapping, Sequence

from linnet.errors import LinnetError
from linnet.figures.figure import Figure, Series
from linnet.registry import STUDY
from linnet.studies.base import TRANSNORMER
from linnet.studies.drawn import Drawn
from linnet.studies.records import Record
from linnet.studies.transnormer_table6 import CLASSES, TASKS, table6_accuracies, table6_mean, table6_task_name

SCORES, SPEEDS = "transnormer-table6", "transnormer-table7"
TOKENS = 2048


@STUDY.add("transnormer-figure1")
class Figure1(Drawn):
    """A circle per system that has both a score and a speed."""

    title = "Score, speed and memory, as in TransNormer's Figure 1"
    paper, item = TRANSNORMER, "Figure 1"
    picture = "score, speed and memory"
    sources = (SCORES, SPEEDS)

    def draw(self, found: Mapping[str, Sequence[Record]]) -> Figure:
        """The circles at 2,048 tokens."""
        return figure1_circles(found[SCORES], found[SPEEDS], TOKENS)


def figure1_circles(scores: Sequence[Record], speeds: Sequence[Record], tokens: int) -> Figure:
    """The mean accuracy over the tasks that all systems have, against training speed at one length."""
    by_system = table6_accuracies(scores)
    measured = next((record for record in speeds if record["tokens"] == tokens), None)
    if measured is None:
        raise LinnetError(f"the speeds have no row of {tokens:,} tokens")
    rows = [row for row in measured["rows"] if row["row"] in by_system]
    tasks = [task for task in TASKS if all(task in by_system[row["row"]] for row in rows)]
    if not rows or not tasks:
        raise LinnetError("the scores and the speeds have no systems with a task in common: finish more runs")
    means = {row["row"]: table6_mean({task: by_system[row["row"]][task] for task in tasks}) for row in rows}
    series = [Series(row["row"], [row["training"]], [means[row["row"]]], sizes=[row["memory"]]) for row in rows]
    title = f"Score, speed and memory at {tokens:,} tokens"
    score = f"test accuracy, % ({', '.join(map(table6_task_name, tasks))})"
    note = "the area of a circle is the peak memory of a training step"
    chance = table6_mean({task: [100 / CLASSES[task]] for task in tasks})
    return Figure(
        title,
        "training steps per second",
        score,
        series,
        log_x=True,
        note=note,
        levels=[("chance", chance)],
        size_unit=("MB", 1e-6),
    )
