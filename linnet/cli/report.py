"""`linnet report`: one HTML page about one run or several."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_json

Runs = Annotated[list[Path], typer.Argument(help="The folder of a run, or of several to compare.", metavar="DIR...")]
Out = Annotated[
    Path | None, typer.Option("--out", help="The file to write.", metavar="FILE", show_default="report.html")
]


def command(folders: Runs, out: Out = None, json: Json = False) -> None:
    """Write a report about one run or several, as an HTML file.

    It has their curves, configuration and environment; they need not be finished. The file is complete: it opens
    offline and loads nothing. It goes to the folder of the run; of several runs, to the current folder.

    \b
    Examples:
      linnet report runs/mine
      linnet report runs/mine runs/other --out compared.html
    """
    from linnet.report.page import write_report

    path = write_report(folders, out)
    if json:
        print_json({"report": str(path), "bytes": path.stat().st_size})
    else:
        print(path)
