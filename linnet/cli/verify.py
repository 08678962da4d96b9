"""`linnet verify`: check that every file of a run or of an exported model is intact."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_cli_json, print_cli_table

Folder = Annotated[Path, typer.Argument(help="The folder of a run or of an exported model.", metavar="DIR")]


def verify_command(folder: Folder, json: Json = False) -> None:
    """Verify every file of a run or of an exported model.

    Checks every hash of every checkpoint, the metrics and the tokenizer, and loads each model. Changes nothing. The
    exit code is 1 if a file is damaged or missing, or does not belong to the others.

    \b
    Examples:
      linnet verify runs/mine
      linnet verify models/mine --json
    """
    from linnet.models.loading import load_model
    from linnet.screen import Screen
    from linnet.storage.verify import verify_folder

    warn = Screen(quiet=json).warn
    found = verify_folder(folder, lambda place, step: load_model(place, step, warn))
    healthy = all(part.ok for part in found)
    if json:
        print_cli_json({"folder": str(folder), "ok": healthy, "checks": [part._asdict() for part in found]})
    else:
        print_cli_table(["status", "what", "found"], [["ok" if p.ok else "wrong", p.name, p.found] for p in found])
    if not healthy:
        raise typer.Exit(1)
