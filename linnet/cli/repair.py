"""`linnet repair`: repair a broken run folder, so that `linnet resume` can continue."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_cli_json

Run = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="DIR")]


def repair_command(folder: Run, json: Json = False) -> None:
    """Set damaged checkpoints of a run aside.

    Removes the leftovers of killed processes. Moves damaged checkpoints to DIR/damaged and deletes none. Then prints
    the step from which the run can continue.

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
        print(f"intact: step {', '.join(map(str, done.steps))}; `linnet resume {folder}` continues from the newest")
    else:
        print(f"no checkpoint is intact; `linnet resume {folder}` starts over")
