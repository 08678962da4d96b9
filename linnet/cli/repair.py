"""`linnet repair`: repair a broken run folder, so that `linnet resume` can continue."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linnet.cli import Json, print_cli_json

if TYPE_CHECKING:
    from linnet.storage.repair import Repaired

Run = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="DIR")]


def repair_command(folder: Run, json: Json = False) -> None:
    """Set damaged checkpoints of a run aside.

    Removes the leftovers of killed processes. Moves damaged checkpoints to DIR/damaged and deletes none. Then prints
    the step from which the run can continue; the exit code is 1 if something else keeps it from continuing.

    \b
    Example:
      linnet repair runs/mine
    """
    from linnet.storage.repair import repair_run

    done = repair_run(folder)
    if json:
        print_cli_json({"folder": str(folder), **done._asdict()})
    else:
        _print_repaired(folder, done)
    if done.obstacle:
        raise typer.Exit(1)


def _print_repaired(folder: Path, done: "Repaired") -> None:
    """Print what was done, and how to go on."""
    for path in done.removed:
        print(f"removed {path}")
    for place, why in done.damaged.items():
        print(f"moved to {folder / place}: {why}")
    if done.failure:
        print(done.failure)
    if done.steps:
        print(f"intact: step {', '.join(map(str, done.steps))}")
    if done.obstacle:
        print(f"{done.obstacle}; `linnet resume {folder}` does not continue before this is mended")
    elif done.steps:
        print(f"`linnet resume {folder}` continues from step {done.steps[-1]}")
    else:
        print(f"no checkpoint is intact; `linnet resume {folder}` starts over")
