"""`linnet reproduce`: a table or figure of a paper, or a study of our own, by one command."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linnet.cli import Json, check_folder, print_json
from linnet.errors import InputError, unknown

if TYPE_CHECKING:
    from linnet.screen import Screen

SPEED, CIRCLES, SCORES = "transnormer-table7", "transnormer-figure1", "transnormer-table6"
SCALES = ("cpu", "paper")
Name = Annotated[str, typer.Argument(help="A study or a calculation, such as transnormer-table4.", metavar="NAME")]
Scale = Annotated[str, typer.Option("--scale", help="cpu: two cores can do it; paper: a paper's own size, for GPUs.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder of the runs; default runs/NAME-SCALE, or one that studies share.")
]
Results = Annotated[Path | None, typer.Option("--results", help="Folder of the JSON; default OUT/results.")]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", help="Only runs whose name begins so, such as listops-T2; may be given again."),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="Runs of each system, with seeds 0, 1, ...; default the study's.")
]
Render = Annotated[bool, typer.Option("--render", help="Only draw the table and the figure of the results so far.")]


def command(
    name: Name,
    scale: Scale = "cpu",
    out: Out = None,
    results: Results = None,
    only: Only = None,
    seeds: Seeds = None,
    render: Render = False,
    json: Json = False,
) -> None:
    """Do the runs behind a table of results, and render it.

    Each finished run leaves one JSON file with its configuration, seed, versions and curve; what is there already is
    not done again, so the command can be stopped and started, and started twice to use two cores. The table and the
    figure are written beside the results; --render also draws how far unfinished runs are, beside their folder.

    \b
    Trained: transnormer-table4, transnormer-masked-lm, transnormer-table6, transnormer-table2,
      transnormer-figure2, lln-training, recall.
    Computed: lln-distribution, lln-concentration. Measured: transnormer-table7.
    Drawn from the results of tables 6 and 7: transnormer-figure1.

    \b
    Examples:
      linnet reproduce transnormer-table4
      linnet reproduce recall
      linnet reproduce lln-concentration
      linnet reproduce transnormer-table6 --only listops --results docs/results/transnormer-table6-cpu
      linnet reproduce transnormer-table4 --results docs/results/transnormer-table4-cpu --render
    """
    from linnet.screen import Screen
    from linnet.studies.calculations import CALCULATIONS

    screen = Screen(quiet=json)
    for option, folder in (("--out", out), ("--results", results)):
        if folder is not None and name != CIRCLES:  # that writes one picture
            check_folder(option, folder)
    if name in (SPEED, CIRCLES) and scale != "cpu":
        raise unknown("scale", scale, ("cpu",))
    if name in CALCULATIONS and scale not in SCALES:  # which are the same at both
        raise unknown("scale", scale, SCALES)
    if name in (SPEED, CIRCLES, *CALCULATIONS):
        for option, value in (("only", only and only[0]), ("seeds", seeds)):
            if value:
                raise InputError(f"--{option} is {value!r}: {name} has no runs to choose from")
    if name == CIRCLES:
        _draw_circles(results or out or Path("runs") / f"{name}-{scale}", scale, json)
    elif name == SPEED:
        _measure(results or (out or Path("runs") / f"{name}-{scale}") / "results", render, screen, json)
    elif name in CALCULATIONS:
        _calculate(name, results or (out or Path("runs") / name) / "results", render, screen, json)
    else:
        _study(name, scale, out, results, tuple(only or ()), seeds, render, screen, json)


def _study(
    name: str, scale: str, out: Path | None, results: Path | None, only: tuple[str, ...], seeds: int | None,
    render: bool, screen: "Screen", json: bool,
) -> None:  # fmt: skip
    """Train what is missing of a study, and render it."""
    from linnet.studies.calculations import CALCULATIONS
    from linnet.studies.results import check_origin
    from linnet.studies.standing import render_standing, standing_table, unfinished
    from linnet.studies.study import chosen, command_of, find_study, run_study, trials

    study = find_study(name, also=(SPEED, CIRCLES, *CALCULATIONS))
    planned = list(trials(study, scale, seeds))
    asked = [trial.name for trial in chosen(planned, only)]
    runs = out or Path("runs") / f"{study.shared or name}-{scale}"
    folder = results or runs / study.results(name)
    check_origin(folder, command_of(name, scale))
    signal = 0 if render else run_study(name, scale, runs, folder, screen, only, seeds)
    begun, title = unfinished(runs), f"{study.title} ({scale} scale)"
    if begun and not json:
        print(f"{standing_table(begun)}\n")
    pages = render_standing(begun, runs, f"{title}: unfinished runs") if begun and render else ()
    if pages and not json:
        print(*pages, sep=" and ")
    found = _show(folder, title, [trial.name for trial in planned], render and not begun, json)
    found |= {"begun": [run.name for run in begun], "signal": signal}
    found |= dict(itertools.zip_longest(("begun_page", "begun_figure"), map(str, pages)))
    _tell(found, json, goes_on=not render and any(not (folder / f"{name}.json").exists() for name in asked))
    if signal:
        raise typer.Exit(128 + signal)


def _calculate(name: str, folder: Path, render: bool, screen: "Screen", json: bool) -> None:
    """Compute what needs no training, with progress, keep it as one JSON file, and render it."""
    from linnet.storage import write_json
    from linnet.studies.calculations import CALCULATIONS, calculate
    from linnet.studies.results import check_origin

    check_origin(folder, f"linnet reproduce {name}")
    if not render and not list(folder.glob("*.json")):
        try:
            found = calculate(name, screen.work(f"computing {name}"))
        finally:
            screen.close()
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{name}.json", found)
    _tell(_show(folder, CALCULATIONS[name].title, [name], render, json), json)


def _measure(folder: Path, render: bool, screen: "Screen", json: bool) -> None:
    """Measure speed and memory at each length that is missing, and render them."""
    from linnet.bench.arena import LENGTHS, measure_arena
    from linnet.storage import write_json
    from linnet.studies.lra_rows import COMPARED
    from linnet.studies.results import check_origin

    made_by = f"linnet reproduce {SPEED}"
    check_origin(folder, made_by)
    systems = {name: f"{system}_lra" for name, system in COMPARED.items()}
    if not render:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for tokens in LENGTHS:
                place = folder / f"n{tokens}.json"
                if not place.exists():
                    show = screen.work(f"measuring {len(systems)} systems at {tokens:,} tokens")
                    found = measure_arena(systems, tokens, rounds=5, progress=show)
                    write_json(place, {**found, "command": made_by})
        finally:
            screen.close()
    title = "Speed and memory of the Long Range Arena's models: the shape of TransNormer's Table 7"
    _tell(_show(folder, title, [f"n{tokens}" for tokens in LENGTHS], render, json), json)


def _show(folder: Path, title: str, planned: Sequence[str], needed: bool, json: bool) -> dict[str, Any]:
    """Render the results so far, which must be there if `needed`: how many of those `planned`, and the files."""
    from linnet.studies.results import read_results, to_markdown
    from linnet.studies.results import render as draw

    there, drawn = {path.stem for path in folder.glob("*.json")}, list[str]()
    if there or needed:
        records = read_results(folder)
        drawn = [str(path) for path in draw(folder, title)]
        if not json:
            print(to_markdown(records))
            print(" and ".join(drawn))
    done = len(there.intersection(planned))
    files = dict(itertools.zip_longest(("page", "figure", "maps"), drawn))
    return {"done": done, "planned": len(planned), "other": len(there) - done, **files}


def _tell(found: dict[str, Any], json: bool, goes_on: bool = False) -> None:
    """What `_show` found, in a line, or with --json whole."""
    if json:
        print_json(found)
        return
    more = f"; other results there: {found['other']}" if found["other"] else ""
    ending = ": the same command goes on" if goes_on else ""
    print(f"{found['done']} of {found['planned']} runs are done{more}{ending}")


def _draw_circles(place: Path, scale: str, json: bool) -> None:
    """The figure, from the results of both tables beside it."""
    from linnet.figures.figure import save_figures
    from linnet.storage import beside
    from linnet.studies.lra_pages import circles
    from linnet.studies.results import digest, one_line_damage, read_results

    picture, found, places = place if place.suffix == ".png" else beside(place, ".png"), {}, []
    for name in (SCORES, SPEED):
        folders = [picture.parent / f"{name}-{scale}" / "results", picture.parent / f"{name}-{scale}"]
        folder = next((folder for folder in folders if any(folder.glob("*.json"))), None)
        if folder is None:
            raise InputError(f"{folders[0]} holds no results: `linnet reproduce {name}` makes them")
        found[name] = read_results(folder)
        places.append(folder)
    records = [*found[SCORES], *found[SPEED]]
    note = "the area of a circle is the peak memory of a training step"
    with one_line_damage(*places):
        figure = circles(found[SCORES], found[SPEED], 2048, note)
    save_figures([figure], picture, {"linnet-results": digest(records)})
    if json:
        print_json({"figure": str(picture), "systems": [series.name for series in figure.series]})
    else:
        print(picture)
