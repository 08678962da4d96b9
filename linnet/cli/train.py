"""`linnet train`: train a model from a recipe, in a folder that holds everything about the run."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linnet.cli import Json, print_cli_json
from linnet.errors import InputError

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
    from linnet.distributed.ranks import launched_ranks
    from linnet.screen import Screen
    from linnet.train.check import check_config

    screen = Screen(quiet=json, silent=not launched_ranks().first)
    config = load_recipe_config(recipe, (*(sets or ()), *(("data.skip_bad=true",) if skip_bad else ())), screen.warn)
    check_config(config)
    train_in_folder(config, out, config_recipe_path(recipe).stem, screen, dry_run, json)


def train_in_folder(
    config: "RunConfig", out: Path | None, name: str, screen: "Screen", dry_run: bool, json: bool
) -> None:
    """Do a new run in the folder `out`, or in one that is called after `name` and the time; or print its plan only."""
    from linnet.distributed.ranks import launched_ranks
    from linnet.train.check import check_out_folder

    ranks = launched_ranks()
    if config.distributed is not None:
        ranks.join(config.distributed.timeout)
    if ranks.restartable and out is None and not dry_run:
        raise InputError("torchrun --max-restarts needs --out: a restarted run looks for its folder")
    folder = out or Path(ranks.share(str(Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"))[0])
    again = ranks.restarts > 0 and ranks.share("again" if (folder / "config.toml").exists() else "")[0]
    if not again:
        check_out_folder(folder)
    if dry_run:
        from linnet.train.dry_run import dry_run as plan

        print_plan(plan(config, screen), json)
        return
    from linnet.train.run import continue_run, start_run

    print_outcome((continue_run if again else start_run)(config, folder, screen), json)


def print_outcome(outcome: "Outcome", json: bool) -> None:
    """Print the outcome of a run, on one rank; if a signal stopped it, exit with the code of that signal."""
    from linnet.distributed.ranks import launched_ranks
    from linnet.screen import forgiving_screen

    with forgiving_screen("stdout"):  # a closed pipe must not change the exit code of the training
        if not launched_ranks().first:
            pass
        elif json:
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
    """Print the plan of a dry run, on one rank."""
    from linnet.distributed.ranks import launched_ranks

    if not launched_ranks().first:
        return
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
    memory = dict(plan["memory"])
    ranks, total = memory.pop("ranks"), memory.pop("total")
    needs = ", ".join(f"{name} {size / 2**20:,.1f}" for name, size in memory.items() if size)
    whose = f" of each of {ranks} ranks" if ranks > 1 else ""
    print(f"# estimated memory{whose}: {total / 2**20:,.1f} MiB: {needs}")
