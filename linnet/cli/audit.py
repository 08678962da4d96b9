"""`linnet audit`: measure what each attention reads that it should not, in linnet and in other libraries."""

import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linnet import __version__
from linnet.cli import Json, print_cli_json, print_cli_table
from linnet.errors import InputError

if TYPE_CHECKING:
    from linnet.testing.audit import Audit

Names = Annotated[
    list[str] | None, typer.Argument(help="Mechanisms or packages; all of them by default.", metavar="[NAME]...")
]
Peers = Annotated[bool, typer.Option("--peers/--no-peers", help="Measure the other libraries that are installed.")]
Reference = Annotated[
    Path | None,
    typer.Option(
        "--against",
        help="Instead, compare a mechanism or model with tensors recorded elsewhere (docs/fidelity.md).",
        metavar="REF.safetensors",
    ),
]
COLORS = {True: "green", False: "bold red", None: "dim"}


def audit_command(names: Names = None, peers: Peers = True, against: Reference = None, json: Json = False) -> None:
    """Measure whether each attention reads what it should not.

    Checks each attention against the contract of linnet.testing. Each number is the largest change of the output,
    relative to the largest output: of past tokens when future ones change, of a row when its batch mates, its padding
    or its packing change, and so on. 0 means exactly 0, "-" not promised, "inf" not finite or failed to run. The exit
    code is 1 if one of linnet's own mechanisms fails; other libraries do not count.

    \b
    Examples:
      linnet audit
      linnet audit lln softmax --no-peers
      linnet audit performer-pytorch --json
      linnet audit --against recorded.safetensors
    """
    if against is not None:
        _against(against, names or [], json)
        return
    from linnet.screen import Screen
    from linnet.testing.audit import choose_audit_cases, run_audit

    cases = choose_audit_cases(names or (), peers)
    screen = Screen(quiet=json)
    try:
        audit = run_audit(cases, screen.work(f"measuring {len(cases)} attentions"))
    finally:
        screen.close()
    audit["versions"] = {"linnet": __version__, **audit["versions"]}
    if json:
        print_cli_json(audit)
    else:
        _print(audit)
    if not audit["passed"]:
        raise typer.Exit(1)


def _against(path: Path, names: list[str], json: bool) -> None:
    """Compare with recorded tensors, print each difference, and exit with 1 if one is too large."""
    from linnet.testing.against import check_against

    if len(names) > 1:
        raise InputError(f"--against compares one mechanism or preset, not {len(names)}: {', '.join(names)}")
    found = check_against(path, names[0] if names else None)
    if json:
        print_cli_json(found)
    else:
        rows = [[key, f"{value:.1e}"] for key, value in found["differences"].items()]
        print_cli_table(["tensor", "largest difference"], rows)
        verdict = "equal" if found["passed"] else "DIFFERENT"
        print(f"{found['name']} ({found['what']}): {verdict}; allowed {found['bound']:.0e} of the largest entry")
    if not found["passed"]:
        raise typer.Exit(1)


def _print(audit: "Audit") -> None:
    """Print the table, then versions, what was skipped and what failed."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from linnet.testing.audit import COLUMNS, audit_cell, audit_failures, audit_verdict

    table = Table("attention", "form", box=None, pad_edge=False, header_style="bold")
    for heading in COLUMNS:
        table.add_column(heading.replace(" ", "\n"), justify="right")
    table.add_column("verdict")
    for row in audit["rows"]:
        cells = [Text(text, COLORS[passed]) for text, passed in (audit_cell(row, heading) for heading in COLUMNS)]
        table.add_row(row["name"], row["form"], *cells, Text(audit_verdict(row), COLORS[row["passed"]]))
    console = Console(width=None if sys.stdout.isatty() else 1000, highlight=False, markup=False, soft_wrap=True)
    console.print(table)
    console.print("\n" + ", ".join(f"{package} {version}" for package, version in audit["versions"].items()))
    if any(row["group"] == "by design" for row in audit["rows"]):
        console.print("lln statistics=tensor: statistics of the whole tensor leak by design, so it does not count")
    for reason, rows in groupby(audit["skipped"], key=lambda row: row["reason"]):
        console.print(f"not measured: {', '.join(dict.fromkeys(row['name'] for row in rows))}: {reason}")
    for line in audit_failures(audit):
        console.print(f"FAILS {line}")
