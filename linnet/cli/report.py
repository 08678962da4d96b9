"""`linnet report`: write one HTML page about one or more runs."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_cli_json

Runs = Annotated[list[Path], typer.Argument(help="The folder of a run, or of several to compare.", metavar="DIR...")]
Out = Annotated[
    Path | None, typer.Option("--out", help="The file to write.", metavar="FILE", show_default="report.html")
]


def report_command(folders: Runs, out: Out = None, json: Json = False) -> None:
    """Write an HTML report about one or more runs.

    The report shows curves, configuration and environment; the runs need not be finished. It is one file that opens
    offline and loads nothing else. By default it goes to the folder of the run, or to the current folder if there are
    several runs.

    \b
    Examples:
      linnet report runs/mine
      linnet report runs/mine runs/other --out compared.html
    """
    from linnet.report.page import write_report_page

    path = write_report_page(folders, out)
    if json:
        print_cli_json({"report": str(path), "bytes": path.stat().st_size})
    else:
        print(path)
