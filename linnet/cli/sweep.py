"""`linnet sweep`: train a recipe with every combination of some settings, and find the best."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, check_cli_folder, print_cli_json, print_cli_report, print_cli_table
from linnet.cli.reproduce import Render
from linnet.cli.train import Recipe, Sets

Grid = Annotated[
    list[str] | None,
    typer.Option("--grid", help="A setting and its values, such as train.lr=1e-3,3e-3; repeatable.", metavar="KEY=A,B"),
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Runs per combination, with seeds 0, 1, ...")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the runs; default runs/sweep-RECIPE.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the runs and their sizes.")]


def sweep_command(
    recipe: Recipe,
    grid: Grid = None,
    seeds: Seeds = 1,
    sets: Sets = None,
    out: Out = None,
    render: Render = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train every combination of a grid, and rank them.

    Each finished run leaves one record. Recorded runs are not repeated, so you can stop and restart the command, add
    --seeds, and start it twice to use two cores. Sweeps of one recipe share their runs. The table shows the
    mean and the range over seeds; the best combination has the best mean on the validation split.

    \b
    Examples:
      linnet sweep smoke --grid train.lr=1e-3,3e-3 --seeds 3
      linnet sweep text --set data.path=my.txt --grid train.lr=1e-3,3e-3 --grid 'model.width=128,256'
    """
    from linnet.screen import Screen
    from linnet.studies.base import Request
    from linnet.studies.sweep import SCALE, Sweep

    sweep = Sweep(recipe, grid or (), sets or (), seeds)
    if dry_run:
        rows = [run._asdict() for run in sweep.dry_run(SCALE)]
        if json:
            print_cli_json(rows)
        else:
            columns = ("run", "parameters", "tokens", "steps")
            print_cli_table(columns, [[str(row[column]) for column in columns] for row in rows])
        return
    check_cli_folder("--out", out)
    print_cli_report(sweep.reproduce(Request(SCALE, out, render=render), Screen(quiet=json)), json)
