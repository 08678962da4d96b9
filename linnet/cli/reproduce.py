"""`linnet reproduce`: a table of a paper, or a study of our own, by one command."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_json

Name = Annotated[str, typer.Argument(help="transnormer-table4, transnormer-masked-lm or recall.", metavar="NAME")]
Scale = Annotated[str, typer.Option("--scale", help="cpu: two cores can do it; paper: a paper's own size, for GPUs.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the runs; default runs/NAME-SCALE.")]
Results = Annotated[Path | None, typer.Option("--results", help="Folder of the JSON; default OUT/results.")]
Render = Annotated[bool, typer.Option("--render", help="Only draw the table and the figure of the results so far.")]


def command(
    name: Name,
    scale: Scale = "cpu",
    out: Out = None,
    results: Results = None,
    render: Render = False,
    json: Json = False,
) -> None:
    """Do the runs behind a table of results, and render it.

    Each finished run leaves one JSON file with its configuration, seed, versions and curve; what is there already is
    not done again, so the command can be stopped and started, and started twice to use two cores. The table and the
    figure are written beside the results.

    \b
    Examples:
      linnet reproduce transnormer-table4
      linnet reproduce recall
      linnet reproduce transnormer-table4 --results docs/results/transnormer-table4-cpu --render
    """
    from linnet.analysis.results import read_results, to_markdown
    from linnet.analysis.results import render as draw
    from linnet.train.log import Screen
    from linnet.train.study import find_study, run_study, trials

    study = find_study(name)
    planned = len(list(trials(study, scale)))
    runs = out or Path("runs") / f"{name}-{scale}"
    folder = results or runs / "results"
    signal = 0 if render else run_study(name, scale, runs, folder, Screen(quiet=json))
    done, page, picture = len(list(folder.glob("*.json"))), None, None
    if done or render:
        records = read_results(folder)
        page, picture = draw(folder, f"{study.title} ({scale} scale)")
        if not json:
            print(to_markdown(records))
            print(f"{page} and {picture}")
    if json:
        files = {"page": page and str(page), "figure": picture and str(picture)}
        print_json({"done": done, "planned": planned, "signal": signal, **files})
    else:
        print(f"{done} of {planned} runs are done" + ("" if done == planned else ": the same command goes on"))
    if signal:
        raise typer.Exit(128 + signal)
