"""`linnet bench`: what things cost on this machine, measured."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linnet.cli import Json, print_json, print_table
from linnet.errors import InputError, unknown

if TYPE_CHECKING:
    from linnet.train.log import Screen

KINDS = ("layer", "peers")
ATTENTIONS = ("softmax", "norm", "diag", "lln")
What = Annotated[
    str,
    typer.Argument(
        help="layer: one layer against softmax, 512 to 8,192 tokens. peers: ours against other libraries' code of the "
        "same mechanism, 2,048 tokens.",
        metavar="WHAT",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Draw it: .png, .pdf or .svg; the numbers go to a .json beside it.", metavar="FILE"),
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads that a layer uses.", show_default="as torch chooses")
]


def command(what: What, out: Out = None, threads: Threads = None, json: Json = False) -> None:
    """Measure time and memory of a layer as the text gets longer.

    It is trained, and the memory is the peak. `peers` trains a mechanism beside each library that has it too. The
    mechanisms take turns and medians are shown; each peak comes from a process of its own. If other programs kept the
    machine busy meanwhile, it says so. A minute or two on two quiet cores.

    \b
    Examples:
      linnet bench layer
      linnet bench layer --threads 1 --out cost.png
      linnet bench peers --threads 2
    """
    if what not in KINDS:
        raise unknown("benchmark", what, KINDS)
    if what == "peers" and out is not None:
        raise InputError("--out is for `linnet bench layer`: peers are shown as a table, or with --json")

    import torch

    from linnet.analysis.costs import save_cost
    from linnet.analysis.figures import check_target
    from linnet.bench.layer import LENGTHS
    from linnet.train.log import Screen

    if out is not None:
        check_target(out)
    if threads is not None:
        torch.set_num_threads(threads)
    if what == "peers":
        _peers(Screen(quiet=json), json)
        return
    cost = measure_cost(ATTENTIONS, LENGTHS, 5, Screen(quiet=json))
    options = {"--out": out, "--threads": threads}
    given = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
    cost["command"] = shlex.join(["linnet", "bench", what, *given])
    files = save_cost(cost, out) if out is not None else []
    if json:
        print_json({**cost, "files": [str(file) for file in files]})
    else:
        print_cost(cost)
        for file in files:
            print(file)


def measure_cost(names: Sequence[str], lengths: Sequence[int], rounds: int, screen: "Screen") -> dict[str, Any]:
    """The measurement, with progress."""
    from linnet.bench.layer import measure_layer

    try:
        show = screen.work(f"measuring one layer of {', '.join(names)}, {lengths[0]:,} to {lengths[-1]:,} tokens")
        return measure_layer(names, lengths, rounds, show)
    finally:
        screen.close()


def print_cost(cost: Mapping[str, Any]) -> None:
    """The measurement for people."""
    from linnet.analysis.costs import cost_note, cost_tables

    for table in cost_tables(cost):
        print(f"{table.title}:")
        print_table(table.columns, table.rows)
    print(cost_note(cost))


def _peers(screen: "Screen", json: bool) -> None:
    """Measure and show our mechanisms beside those of other libraries."""
    from linnet.bench.pairs import PAIRS, measure_pairs

    try:
        found = measure_pairs(progress=screen.work(f"measuring {len(PAIRS)} mechanisms beside other libraries"))
    finally:
        screen.close()
    if json:
        print_json(found)
        return
    sizes = found["settings"]
    rows = [
        [row["attention"], row["form"], f"{1000 * row['ours']:.0f} ms", f"{row['package']} {row['version']}"]
        + [f"{1000 * row['theirs']:.0f} ms", f"{row['speedup']:.2f}x", f"{row['others']:.1f}"]
        for row in found["rows"]
    ]
    if rows:
        print_table(["attention", "form", "ours", "library", "theirs", "faster", "others' cores"], rows)
    print(
        f"Forward and backward, batch {sizes['batch']}, {sizes['tokens']:,} tokens, {sizes['heads']} heads of "
        f"{sizes['head_dim']}, {sizes['size']} features, projections or landmarks, threads: {sizes['threads']}."
    )
    for row in found["skipped"]:
        print(f"not measured: {row['attention']}, {row['form']}: {row['package']}: {row['reason']}")
