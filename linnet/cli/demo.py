"""`linnet demo`: train a small TransNormer, compare the cost of its layers with softmax, and generate text."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from linnet.cli import Json, print_cli_json, print_cli_table

if TYPE_CHECKING:
    from linnet.screen import Screen


class Size(NamedTuple):
    """The size of a demo: changes to the recipe, lengths and rounds of the measurement, tokens to generate."""

    sets: tuple[str, ...]
    lengths: tuple[int, ...]
    rounds: int
    new_tokens: int


RECIPE = "stdlib"
PROMPT = "def "
DRAW: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "seed": 0}
WHOLE = Size((), (512, 1024, 2048, 4096, 8192), 3, 200)
SMALLER = """data.context=128 data.vocab_size=1024 model.layers=["diag","norm"] model.width=128 model.ffn_width=344
train.steps=120 train.warmup=12 train.lr=4e-3 train.eval_every=60 train.eval_batches=8"""
QUICK = Size(tuple(SMALLER.split()), (512, 1024, 2048), 3, 80)
LAYERS = ("softmax", "diag", "norm")  # TransNormer T2 uses the last two

Quick = Annotated[bool, typer.Option("--quick", help="A smaller model that takes under 40 seconds.")]
Out = Annotated[Path | None, typer.Option("--out", help="New folder for the run.", show_default="runs/demo-TIME")]


def demo_command(quick: Quick = False, out: Out = None, json: Json = False) -> None:
    """Train a small TransNormer, measure its layers, generate text.

    The model is a TransNormer T2, trained on the source code of Python's standard library; nothing is downloaded. Its
    layers are timed against softmax. The demo takes at most five minutes on two idle cores. It leaves an ordinary run
    folder with a report, whose path is printed last. Ctrl-C stops it and saves the model.

    \b
    Examples:
      linnet demo
      linnet demo --quick --out runs/first
    """
    from linnet.report.page import check_report_page_extra, write_report_page
    from linnet.train.check import check_out_folder

    size, folder = QUICK if quick else WHOLE, out or Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    check_report_page_extra()
    check_out_folder(folder)

    from linnet.screen import Screen
    from linnet.storage import write_json_file

    screen = Screen(quiet=json)
    screen.say("[1/4] training a TransNormer T2 on the source code of Python's standard library")
    outcome = _train(size, folder, screen, json)
    screen.say("[2/4] measuring its layers against softmax")
    cost = _measure(size, screen)
    write_json_file(folder / "cost.json", cost)
    if not json:
        _print_cost(cost)
    screen.say(f"[3/4] generating text after {PROMPT!r}")
    sample = _write(folder, size.new_tokens, json)
    write_json_file(folder / "sample.json", sample)
    screen.say("[4/4] writing the report")
    report = write_report_page([folder])
    if json:
        print_cli_json({**outcome, "cost": cost, "sample": sample, "report": str(report)})
    else:
        print(report)


def _train(size: Size, folder: Path, screen: "Screen", json: bool) -> dict[str, Any]:
    """Train in `folder`; on a signal, the demo exits like `linnet train`."""
    from linnet.cli.train import print_outcome
    from linnet.config import load_recipe_config
    from linnet.train.run import start_run

    outcome = start_run(load_recipe_config(RECIPE, size.sets), folder, screen)
    if outcome.signal:
        print_outcome(outcome, json)
    assert outcome.valid is not None  # the last step of a run is evaluated
    if not json:
        print(f"validation perplexity {_shown(outcome.valid['perplexity'])} after {outcome.seconds:.0f} seconds")
    return outcome.summary()


def _measure(size: Size, screen: "Screen") -> dict[str, Any]:
    """Measure the cost of the layers, with progress."""
    from linnet.bench.layer import measure_layer_costs

    try:
        span = f"{size.lengths[0]:,} to {size.lengths[-1]:,} tokens"
        return measure_layer_costs(
            LAYERS, size.lengths, size.rounds, screen.work(f"measuring {', '.join(LAYERS)}, {span}")
        )
    finally:
        screen.close()


def _print_cost(cost: dict[str, Any]) -> None:
    """Print the tables of the measurement."""
    from linnet.bench.costs import layer_cost_note, layer_cost_tables

    for table in layer_cost_tables(cost):
        print(f"{table.title}:")
        print_cli_table(table.columns, table.rows)
    print(layer_cost_note(cost))


def _shown(perplexity: float | None) -> str:
    """A perplexity as text; an infinite one was logged as null."""
    if perplexity is None:
        return "inf"
    return f"{perplexity:.2f}" if perplexity < 1e6 else f"{perplexity:.4g}"


def _write(folder: Path, new_tokens: int, json: bool) -> dict[str, Any]:
    """Generate text after the prompt, printed token by token."""
    import torch

    from linnet.data.tokenizer import TextStream, Tokenizer
    from linnet.models.generate import Sampling
    from linnet.models.loading import load_model

    model, tokenizer = load_model(folder), Tokenizer.load(folder / "tokenizer.json")
    ids = tokenizer.encode(PROMPT)
    text, parts = TextStream(tokenizer, after=ids), [PROMPT]
    start = time.perf_counter()
    for token in model.stream(torch.tensor([ids]), new_tokens, Sampling(**DRAW)):
        parts.append(text.push(int(token)))
        if not json:
            print("".join(parts) if len(parts) == 2 else parts[-1], end="", flush=True)
    parts.append(text.close())
    if not json:
        print(parts[-1])
    seconds = round(time.perf_counter() - start, 2)
    return {"prompt": PROMPT, "text": "".join(parts), **DRAW, "new_tokens": new_tokens, "seconds": seconds}
