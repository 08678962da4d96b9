"""Predictions of a run for texts without labels, in the format that a benchmark's server accepts."""

from pathlib import Path

from linnet.errors import InputError
from linnet.screen import Screen
from linnet.storage import write_text_file
from linnet.tasks.sentences import SentenceTask
from linnet.train.device import device_precision, pick_device
from linnet.train.run import open_run


def write_predictions(
    folder: str | Path, out: Path, screen: Screen, texts: Path | None = None, checkpoint: str = "best"
) -> int:
    """Write the answers of a checkpoint to `out`, one row per text, and return their number.

    `texts` is a file in the format of the task's own files; by default the test set.
    """
    run = open_run(folder, screen)
    if not isinstance(run.task, SentenceTask):
        raise InputError(
            f"{folder} is a run of {run.given.task}: only tasks on sentences, glue/... and classify, predict"
        )
    chosen = run.task.unlabeled(texts)
    model = run.load(checkpoint).to(pick_device(run.given.train))
    try:
        with device_precision(run.given.train, pick_device(run.given.train)):
            answers = run.task.answers(model, chosen)
    finally:
        screen.close()
    rows = ["\t".join(run.task.header), *(f"{i}\t{answer}" for i, answer in enumerate(answers))]
    write_text_file(out, "\n".join(rows) + "\n")
    return len(answers)
