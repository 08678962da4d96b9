"""`linnet train`: train a model by a recipe, in a folder that holds everything about the run."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linnet.cli import Json, print_json

if TYPE_CHECKING:
    from linnet.train.run import Outcome

Recipe = Annotated[
    str, typer.Argument(help="A name of `linnet list recipes`, or the path of a TOML file.", metavar="RECIPE")
]
Out = Annotated[Path | None, typer.Option("--out", help="New folder of the run.", show_default="runs/RECIPE-TIME")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one key, as in train.steps=100; repeatable.", metavar="KEY=VALUE"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print what would be done, write nothing.")]


SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Pass over files of data.path that are not UTF-8 text, and name them.")
]


def command(
    recipe: Recipe,
    out: Out = None,
    sets: Sets = None,
    dry_run: DryRun = False,
    skip_bad: SkipBad = False,
    json: Json = False,
) -> None:
    """Train a model by a recipe.

    The folder of the run gets its configuration, tokenizer, metrics and checkpoints. Ctrl-C, SIGTERM and SIGHUP (a
    closed terminal) drop an unfinished update, save, and exit with 130, 143 or 129; a second Ctrl-C or SIGTERM exits
    at once. `linnet resume` goes on from there.

    \b
    Examples:
      linnet train smoke
      linnet train text --set data.path=my.txt --out runs/mine
      linnet train wikitext2 --set model.preset=vanilla_lm_small --set seed=1
      linnet train recipes/stdlib.toml --dry-run
    """
    from linnet.config import load_recipe, recipe_path
    from linnet.train.check import check_config, check_out

    config = load_recipe(recipe, (*(sets or ()), *(("data.skip_bad=true",) if skip_bad else ())))
    check_config(config)
    folder = out or Path("runs") / f"{recipe_path(recipe).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    check_out(folder)

    from linnet.screen import Screen
    from linnet.train import run

    if dry_run:
        _tell_plan(run.dry_run(config, Screen(quiet=json)), json)
    else:
        tell_outcome(run.start_run(config, folder, Screen(quiet=json)), json)


def tell_outcome(outcome: "Outcome", json: bool) -> None:
    """Print what a run came to; if a signal stopped it, exit with the code for that."""
    from linnet.screen import forgiving

    with forgiving("stdout"):  # the exit code is that of the training, whoever reads along
        if json:
            print_json(outcome.summary())
        elif outcome.signal:
            part = " of pretraining" if outcome.pretraining else ""
            print(f"stopped at step {outcome.step} of {outcome.steps}{part} and saved: linnet resume {outcome.folder}")
        else:
            done = f"{outcome.step} steps, {outcome.tokens:,} tokens, {outcome.seconds:.0f} s"
            print(f"finished: {done}: {outcome.folder}")
    if outcome.signal:
        raise typer.Exit(128 + outcome.signal)


def _tell_plan(plan: dict[str, Any], json: bool) -> None:
    if json:
        print_json(plan)
        return
    import tomli_w

    print(tomli_w.dumps(plan["config"]))
    samples = f"{plan['drawn']:,} samples of up to {plan['config']['data']['context']:,} tokens"
    print(f"# {plan['parameters']:,} parameters; to train on: {samples}, {plan['tokens']:,} at most, drawn from these:")
    print("#", ", ".join(f"{split} {count:,}" for split, count in plan["samples"].items()))
