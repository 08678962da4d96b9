"""`linnet reproduce`: reproduce a table or figure of a paper, or a study of linnet's own, with one command."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, check_cli_folder, print_cli_json, print_cli_report, print_cli_table
from linnet.registry import STUDY

Name = Annotated[str, typer.Argument(help="A study, such as transnormer-table4.", metavar="NAME")]
Scale = Annotated[str, typer.Option(help="cpu: for two cores; paper: the paper's size, for GPUs.")]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the runs; default runs/NAME-SCALE, or one that studies share.")
]
Results = Annotated[Path | None, typer.Option(help="Folder for the records; default OUT/results.")]
Only = Annotated[list[str] | None, typer.Option(help="Only runs whose names start with this; repeatable.")]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="Runs per system, with seeds 0, 1, ...; default set by the study.")
]
Render = Annotated[bool, typer.Option("--render", help="Only render the table and figure from the records so far.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the runs, their sizes and estimated GPU hours.")]


def reproduce_command(
    name: Name, scale: Scale = "cpu", out: Out = None, results: Results = None, only: Only = None, seeds: Seeds = None,
    render: Render = False, dry_run: DryRun = False, json: Json = False,
) -> None:  # fmt: skip
    """Run the experiments behind a paper's table or figure.

    Each finished run leaves one JSON record with its configuration, seed, versions and curve. Recorded runs are not
    repeated, so you can stop and restart the command, and start it twice to use two cores. The page and the figure are
    written beside the records; --render also plots the progress of unfinished runs, beside their folder.

    --dry-run reads no data. It estimates GPU hours as 6 * parameters * tokens / (312e12 per second * 0.3): one A100 in
    bfloat16 at 30 % of its peak, which small models do not reach. Tokens are steps * batch * accumulate * context,
    including padding.

    \b
    Studies (`linnet list studies` describes them):
      STUDIES

    \b
    Examples:
      linnet reproduce transnormer-table4
      linnet reproduce transnormer-table6 --only listops --results docs/results/transnormer-table6-cpu
      linnet reproduce transnormer-table4 --results docs/results/transnormer-table4-cpu --render
      linnet reproduce transnormer-table4 --scale paper --dry-run
    """
    from linnet.screen import Screen
    from linnet.studies.base import Planned, Request

    study, request = STUDY[name](), Request(scale, out, results, tuple(only or ()), seeds, render)
    if not dry_run:
        for option, folder in (("--out", out), ("--results", results)):
            check_cli_folder(option, folder if study.keeps_records else None)
        print_cli_report(study.reproduce(request, Screen(quiet=json)), json)
    elif json:
        print_cli_json([run._asdict() for run in study.dry_run(scale, request.only, seeds)])
    else:
        print_cli_table(Planned._fields, study.dry_run(scale, request.only, seeds))


reproduce_command.__doc__ = str(reproduce_command.__doc__).replace("STUDIES", "\n      ".join(STUDY.own_names()))
