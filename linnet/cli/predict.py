"""`linnet predict`: write the answers of a fine-tuned model to a file."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_cli_json

Folder = Annotated[Path, typer.Argument(help="A run of `linnet finetune`.", metavar="RUN")]
Out = Annotated[Path, typer.Option("--out", help="The file to write: index and prediction, separated by a tab.")]
Texts = Annotated[
    Path | None,
    typer.Option("--data", help="A file in the format of the task's own files.", show_default="its test set"),
]
Checkpoint = Annotated[str, typer.Option("--checkpoint", help="best, last or a step number.")]


def predict_command(
    folder: Folder, out: Out, texts: Texts = None, checkpoint: Checkpoint = "best", json: Json = False
) -> None:
    """Write a model's answers to texts without labels.

    For a GLUE task, the file has the format that the benchmark's server expects.

    \b
    Examples:
      linnet predict runs/rte --out RTE.tsv
      linnet predict runs/mine --data new.tsv --out answers.tsv
    """
    from linnet.screen import Screen
    from linnet.train.predicting import write_predictions

    count = write_predictions(folder, out, Screen(quiet=json), texts, checkpoint)
    if json:
        print_cli_json({"file": str(out), "predictions": count})
    else:
        print(f"{out}: {count:,} predictions")
