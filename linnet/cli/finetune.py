"""`linnet finetune`: train a pretrained encoder, with a new head, on sentences or pairs."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json
from linnet.cli.train import DryRun, Sets, train_in_folder

Encoder = Annotated[Path, typer.Argument(help="A run of masked_lm, or a folder of `linnet export`.", metavar="RUN")]
TaskName = Annotated[str, typer.Argument(help="glue/sst2, glue/..., or classify for your own file.", metavar="TASK")]
Out = Annotated[Path | None, typer.Option("--out", help="New folder for the run.", show_default="runs/TASK-TIME")]


def finetune_command(
    encoder: Encoder,
    task: TaskName,
    out: Out = None,
    sets: Sets = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Fine-tune a pretrained encoder on a task.

    The encoder keeps its tokenizer, positions and layers; its head is new. Settings come from the recipe `finetune`,
    then from --set. `linnet resume`, `evaluate`, `report` and `predict` work on the run as on any other.

    \b
    Examples:
      linnet finetune runs/encoder glue/sst2
      linnet finetune runs/encoder glue/rte --set train.lr=3e-5 --set seed=1 --out runs/rte
      linnet finetune runs/encoder glue/rte --set data.scratch=true   # the same without pretraining
      linnet finetune runs/encoder classify --set data.path=my.tsv
    """
    from linnet.config import load_recipe_config
    from linnet.distributed.ranks import launched_ranks
    from linnet.screen import Screen
    from linnet.train.check import check_config_tables

    screen = Screen(quiet=json, silent=not launched_ranks().first)
    given = (f"task={task}", f"data.encoder={encoder.absolute()}", *(sets or ()))
    config = load_recipe_config("finetune", given, screen.warn)
    check_config_tables(config)
    train_in_folder(config, out, task.replace("/", "-"), screen, dry_run, json)
