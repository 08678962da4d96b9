"""`linnet resume`: continue a run that was stopped or killed."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json
from linnet.cli.train import print_outcome

Run = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="DIR")]


def resume_command(folder: Run, json: Json = False) -> None:
    """Continue a run from its newest valid checkpoint.

    On the same machine, with the same torch and number of threads, the result is bit-identical to that of a run that
    was never stopped. A damaged checkpoint is reported and skipped. A finished run stays unchanged. If the data or a
    setting that affects the result have changed since the checkpoint, the command refuses; train.steps may change, to
    train longer (docs/training.md lists all settings that may).

    \b
    Example:
      linnet resume runs/mine
    """
    from linnet.train.check import check_and_read_config, check_config

    config = check_and_read_config(folder)
    check_config(config)

    from linnet.distributed.ranks import launched_ranks
    from linnet.screen import Screen

    ranks = launched_ranks()
    if config.distributed is not None:
        ranks.join(config.distributed.timeout)

    from linnet.train import run

    print_outcome(run.resume_run(folder, Screen(quiet=json, silent=not ranks.first)), json)
