"""`linnet evaluate`: measure a trained model on a split of its data, or on any text."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_cli_json, print_cli_table
from linnet.cli.resume import Run

Split = Annotated[str, typer.Option("--split", help="train, valid or test.")]
Text = Annotated[Path | None, typer.Option("--text", help="Measure a language model on this text instead.")]
Checkpoint = Annotated[str, typer.Option("--checkpoint", help="last, best or a step number.")]


def evaluate_command(
    folder: Run, split: Split = "test", text: Text = None, checkpoint: Checkpoint = "last", json: Json = False
) -> None:
    """Measure a run on a whole split, or on any text.

    Prints loss and perplexity per token and, for a causal model, per word: words are separated by white space, and
    each end of line counts as one. The text is read in separate blocks of the context that the run was trained with,
    so a token sees only the earlier tokens of its block. For recall, prints loss and accuracy per answer; for a
    classifier, accuracy and the confusion matrix. The settings and data must not have changed since the run started.

    \b
    Examples:
      linnet evaluate runs/mine
      linnet evaluate runs/mine --split valid --checkpoint best --json
      linnet evaluate runs/mine --text other.txt
    """
    from linnet.train.check import check_and_read_config, check_config

    check_config(check_and_read_config(folder))

    from linnet.screen import Screen
    from linnet.train.run import evaluate_run
    from linnet.train.text import evaluate_text

    screen = Screen(quiet=json)
    if text is None:
        metrics = evaluate_run(folder, split, screen, checkpoint)
    else:
        metrics = evaluate_text(folder, text, screen, checkpoint)
    if json:
        print_cli_json(metrics)
    else:
        confusion = metrics.pop("confusion", None)
        classes = metrics.pop("classes", None) or list(map(str, range(len(confusion or ()))))
        shown = {name: f"{value:,.4f}" if isinstance(value, float) else str(value) for name, value in metrics.items()}
        print_cli_table(["metric", "value"], [[name.replace("_", " "), value] for name, value in shown.items()])
        if confusion is not None:
            print("confusion matrix (rows: true class, columns: predicted class):")
            rows = [[name, *map(str, counts)] for name, counts in zip(classes, confusion, strict=True)]
            print_cli_table(["class", *classes], rows)
