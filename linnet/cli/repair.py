"""`linnet repair`: put a broken run folder in order, so that `linnet resume` can go on."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_cli_json

Run = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="DIR")]


def repair_command(folder: Run, json: Json = False) -> None:
    """Set damaged checkpoints of a run aside.

    What killed processes left is removed. Damaged checkpoints move to DIR/damaged; none is deleted. The command then
    says which step the run can go on from.

    \b
    Example:
      linnet repair runs/mine
    """
    from linnet.storage.repair import repair_run

    done = repair_run(folder)
    if json:
        print_cli_json({"folder": str(folder), **done._asdict()})
        return
    for path in done.removed:
        print(f"removed {path}")
    for place, why in done.damaged.items():
        print(f"moved to {folder / place}: {why}")
    if done.failure:
        print(done.failure)
    if done.steps:
        print(f"whole: step {', '.join(map(str, done.steps))}; `linnet resume {folder}` goes on from the newest")
    else:
        print(f"no checkpoint is whole; `linnet resume {folder}` begins anew")
