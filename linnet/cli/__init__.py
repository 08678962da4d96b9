"""The command line: one file per command, and what they share: the `--json` option, printing, a check.

A command file imports nothing heavy at its top: `linnet --help` reads every one of them.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from linnet.errors import InputError

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]


def print_json(data: object) -> None:
    """The machine-readable answer of a command; a number that is not finite, which JSON does not have, is null."""
    print(json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(data: object) -> object:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, str):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for people: fitted to their terminal; in a file or pipe each row stays on one line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else 1000).print(table)


def check_folder(option: str, folder: Path) -> None:
    """Raise if no folder can be created there, before the work whose results it is for."""
    place = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    if not place.is_dir():
        raise InputError(f"{option} is {folder}: {place} is a file, and the results need a folder")
