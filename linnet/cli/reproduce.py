"""`linnet reproduce`: a table of a paper, or a study of our own, by one command."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from linnet.cli import Json, print_json

if TYPE_CHECKING:
    from linnet.train.log import Screen

Name = Annotated[str, typer.Argument(help="A study or a calculation, such as transnormer-table4.", metavar="NAME")]
Scale = Annotated[str, typer.Option("--scale", help="cpu: two cores can do it; paper: a paper's own size, for GPUs.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder of the runs; default runs/NAME-SCALE, or one that studies share.")
]
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
    figure are written beside the results. A study is transnormer-table4, transnormer-masked-lm, transnormer-figure2,
    transnormer-table2, lln-training or recall; lln-distribution and lln-concentration are computed without training.

    \b
    Examples:
      linnet reproduce transnormer-table4
      linnet reproduce recall
      linnet reproduce lln-concentration
      linnet reproduce transnormer-table4 --results docs/results/transnormer-table4-cpu --render
    """
    from linnet.analysis.calculations import CALCULATIONS
    from linnet.analysis.results import read_results, to_markdown
    from linnet.analysis.results import render as draw
    from linnet.train.log import Screen
    from linnet.train.study import find_study, run_study, trials

    screen = Screen(quiet=json)
    if name in CALCULATIONS:
        title, planned, signal = CALCULATIONS[name].title, 1, 0
        folder = results or (out or Path("runs") / name) / "results"
        if not render and not list(folder.glob("*.json")):
            _calculate(name, folder, screen)
    else:
        study = find_study(name, CALCULATIONS)
        title, planned = f"{study.title} ({scale} scale)", len(list(trials(study, scale)))
        runs = out or Path("runs") / f"{study.shared or name}-{scale}"
        folder = results or runs / (f"results-{name}" if study.shared else "results")
        signal = 0 if render else run_study(name, scale, runs, folder, screen)
    done, page, picture = len(list(folder.glob("*.json"))), None, None
    if done or render:
        records = read_results(folder)
        page, picture = draw(folder, title)
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


def _calculate(name: str, folder: Path, screen: "Screen") -> None:
    """Compute what needs no training, with progress, and keep it as one JSON file."""
    from linnet.analysis.calculations import calculate
    from linnet.storage import write_json

    try:
        found = calculate(name, screen.work(f"computing {name}"))
    finally:
        screen.close()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", found)
