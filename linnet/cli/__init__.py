"""The command line: one file per command. This file holds what they share: `--json`, printing, and a check.

A command file imports nothing heavy at its top, because `linnet --help` imports all of them.
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linnet.errors import InputError

if TYPE_CHECKING:
    from linnet.studies.base import Report

Json = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]


def print_cli_json(data: object) -> None:
    """Print the result of a command as JSON; JSON has no inf or NaN, so they become null."""
    text = json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False)
    print(text.encode(errors="backslashreplace").decode())  # a file's name need not be text; JSON has this escape


def _finite(data: object) -> object:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def print_cli_table(columns: Sequence[str], rows: Iterable[Sequence[str | float]]) -> None:
    """Print a table fitted to the terminal; in a file or pipe each row stays on one line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(cell if isinstance(cell, str) else f"{cell:,}") for cell in row))
    Console(width=None if sys.stdout.isatty() else 1000).print(table)


def print_cli_report(report: "Report", json: bool) -> None:
    """Print the report of a study; if a signal stopped it, exit with the code of that signal."""
    if json:
        print_cli_json(report.data)
    else:
        print(report.text)
    if report.signal:
        raise typer.Exit(128 + report.signal)


def check_cli_folder(option: str, folder: Path | None) -> None:
    """Raise if this folder, if one is given, cannot be created; call it before the work that fills the folder."""
    if folder is None:
        return
    place = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    if not place.is_dir():
        raise InputError(f"{option} is {folder}: {place} is a file, and the results need a folder")
