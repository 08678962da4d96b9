"""`linnet resume`: continue a run that was stopped or killed."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json
from linnet.cli.train import tell_outcome

Run = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="DIR")]


def command(folder: Run, json: Json = False) -> None:
    """Continue a run from its newest valid checkpoint.

    The result is that of a run that was never stopped, to the last bit (same machine, torch and number of
    threads). A damaged checkpoint is named and skipped. A finished run stays as it is. If config.toml or the data are
    no longer those of the checkpoint, the run is refused; train.steps may be raised for a longer run.

    \b
    Example:
      linnet resume runs/mine
    """
    from linnet.train.check import check_config, run_config

    check_config(run_config(folder))

    from linnet.screen import Screen
    from linnet.train import run

    tell_outcome(run.resume_run(folder, Screen(quiet=json)), json)
