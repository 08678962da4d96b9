"""`linnet reproduce`: a table or figure of a paper, or a study of our own, by one command."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, check_folder, print_json, print_table
from linnet.registry import STUDY

Name = Annotated[str, typer.Argument(help="A study, such as transnormer-table4.", metavar="NAME")]
Scale = Annotated[str, typer.Option("--scale", help="cpu: for two cores; paper: the paper's own size, for GPUs.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder of the runs; default runs/NAME-SCALE, or one that studies share.")
]
Results = Annotated[Path | None, typer.Option("--results", help="Folder of the records; default OUT/results.")]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", help="Only runs whose names begin so, such as listops-T2; repeatable."),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="Runs per system, with seeds 0, 1, ...; default the study's.")
]
Render = Annotated[bool, typer.Option("--render", help="Only draw the table and the figure of the records so far.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the runs, their sizes and estimated GPU hours.")]


def command(
    name: Name,
    scale: Scale = "cpu",
    out: Out = None,
    results: Results = None,
    only: Only = None,
    seeds: Seeds = None,
    render: Render = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Do the runs behind a table of results, and render it.

    Each finished run leaves one JSON record with its configuration, seed, versions and curve. What is recorded is not
    done again, so the command can be stopped and started, and started twice to use two cores. The page and the picture
    are written beside the records; --render also draws how far unfinished runs are, beside their folder.

    --dry-run reads no data. Its GPU hours are 6 * parameters * tokens / (312e12 per second * 0.3): one A100 in
    bfloat16 at 30 % of its peak; small models keep it less busy. Tokens are steps * batch * accumulate * context,
    padding included.

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
    from linnet.studies.base import Request

    study = STUDY[name]()
    if dry_run:
        rows = [run._asdict() for run in study.dry_run(scale, tuple(only or ()), seeds)]
        if json:
            print_json(rows)
        else:
            columns = ("run", "parameters", "tokens", "steps", "gpu_hours")
            print_table(columns, [[_cell(row[column]) for column in columns] for row in rows])
        return
    for option, folder in (("--out", out), ("--results", results)):
        if folder is not None and study.keeps_records:
            check_folder(option, folder)
    report = study.reproduce(Request(scale, out, results, tuple(only or ()), seeds, render), Screen(quiet=json))
    if json:
        print_json(report.data)
    else:
        print(report.text)
    if report.signal:
        raise typer.Exit(128 + report.signal)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


command.__doc__ = str(command.__doc__).replace("STUDIES", "\n      ".join(STUDY.names()))
