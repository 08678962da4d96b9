"""`linnet train`: train a model from a recipe, in a folder that holds everything about the run."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linnet.cli import Json, print_cli_json

if TYPE_CHECKING:
    from linnet.config import RunConfig
    from linnet.screen import Screen
    from linnet.train.run import Outcome

Recipe = Annotated[
    str, typer.Argument(help="A name from `linnet list recipes`, or the path of a TOML file.", metavar="RECIPE")
]
Out = Annotated[Path | None, typer.Option("--out", help="New folder for the run.", show_default="runs/RECIPE-TIME")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override one setting, such as train.steps=100; repeatable.", metavar="KEY=VALUE"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything and print the plan; write nothing.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Skip files and rows of data.path that are not text, and list them.")
]


def train_command(
    recipe: Recipe,
    out: Out = None,
    sets: Sets = None,
    dry_run: DryRun = False,
    skip_bad: SkipBad = False,
    json: Json = False,
) -> None:
    """Train a model from a recipe.

    The run folder gets the configuration, tokenizer, metrics and checkpoints. Ctrl-C, SIGTERM and SIGHUP (a closed
    terminal) discard the unfinished update, save a checkpoint and exit with 130, 143 or 129; a second Ctrl-C or
    SIGTERM exits at once. `linnet resume` continues from there.

    \b
    Examples:
      linnet train smoke
      linnet train text --set data.path=my.txt --out runs/mine
      linnet train shards --set data.path=corpus --dry-run
      linnet train wikitext2 --set model.preset=vanilla_lm_small --set seed=1
      linnet train recipes/stdlib.toml --dry-run
    """
    from linnet.config import config_recipe_path, load_recipe_config
    from linnet.screen import Screen
    from linnet.train.check import check_config, check_out_folder

    screen = Screen(quiet=json)
    config = load_recipe_config(recipe, (*(sets or ()), *(("data.skip_bad=true",) if skip_bad else ())), screen.warn)
    check_config(config)
    folder = out or Path("runs") / f"{config_recipe_path(recipe).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    check_out_folder(folder)
    start_or_plan(config, folder, screen, dry_run, json)


def start_or_plan(config: "RunConfig", folder: Path, screen: "Screen", dry_run: bool, json: bool) -> None:
    """Do a new run and print its outcome, or print its plan only."""
    if dry_run:
        from linnet.train.dry_run import dry_run as plan

        print_plan(plan(config, screen), json)
    else:
        from linnet.train.run import start_run

        print_outcome(start_run(config, folder, screen), json)


def print_outcome(outcome: "Outcome", json: bool) -> None:
    """Print the outcome of a run; if a signal stopped it, exit with the code of that signal."""
    from linnet.screen import forgiving_screen

    with forgiving_screen("stdout"):  # a closed pipe must not change the exit code of the training
        if json:
            print_cli_json(outcome.summary())
        elif outcome.signal:
            part = " of pretraining" if outcome.pretraining else ""
            print(f"stopped at step {outcome.step} of {outcome.steps}{part} and saved: linnet resume {outcome.folder}")
        else:
            done = f"{outcome.step} steps, {outcome.tokens:,} tokens, {outcome.seconds:.0f} s"
            print(f"finished: {done}: {outcome.folder}")
    if outcome.signal:
        raise typer.Exit(128 + outcome.signal)


def print_plan(plan: dict[str, Any], json: bool) -> None:
    """Print the plan of a dry run."""
    if json:
        print_cli_json(plan)
        return
    import tomli_w

    print(tomli_w.dumps(plan["config"]))
    samples = f"{plan['drawn']:,} samples of up to {plan['context']:,} tokens"
    print(f"# {plan['parameters']:,} parameters; trains on {samples}, at most {plan['tokens']:,} in all, drawn from:")
    print("#", ", ".join(f"{split} {count:,}" for split, count in plan["samples"].items()))
    for name, tokens in plan.get("corpora", {}).items():
        about = "about " if name in plan["estimated"] else ""
        print(f"# tokens of {name}:", ", ".join(f"{split} {about}{count:,}" for split, count in tokens.items()))
