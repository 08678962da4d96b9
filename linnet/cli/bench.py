"""`linnet bench`: measure the cost of attention on this machine, in linnet and in other libraries."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linnet.cli import Json, print_cli_json, print_cli_table
from linnet.errors import InputError, unknown_name_error

if TYPE_CHECKING:
    from linnet.bench.measure import Bench
    from linnet.screen import Screen

KINDS = ("ops", "model", "decode", "profile", "vision")
ALONE = ("peers", "parallel")
What = Annotated[
    list[str],
    typer.Argument(
        help="One or more of: ops (attention alone, every backend and other libraries), model (training steps of a "
        "small model, and one layer), decode (one more token), profile (where the time goes), vision (an "
        "image of 32 to 1,024 pixels; --lengths are then pixels). Or peers: linnet's "
        "mechanisms beside public implementations of them, at 1,024 and 4,096 tokens. Or parallel: one sequence "
        "over 1 and 2 processes of one core each, and estimates for more.",
        metavar="WHAT...",
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="Tiny sizes that take seconds, only to check that it runs.")]
Lengths = Annotated[
    str | None, typer.Option("--lengths", help="Sequence lengths in tokens, separated by commas.", metavar="N,N,...")
]
Only = Annotated[str, typer.Option("--only", help="Measure only cases whose name contains TEXT.", metavar="TEXT")]
Peers = Annotated[bool, typer.Option("--peers/--no-peers", help="ops: measure the other libraries that are installed.")]
Compile = Annotated[bool, typer.Option("--compile", help="model: use torch.compile; peak memory is then not measured.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Number of threads.", show_default="torch's choice")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for JSON and figures; the page is FOLDER.md.", metavar="FOLDER"),
]


def bench_command(
    what: What,
    quick: Quick = False,
    lengths: Lengths = None,
    only: Only = "",
    peers: Peers = True,
    compiled: Compile = False,
    threads: Threads = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Measure time and memory of attention, models and decoding.

    Compared cases, and measurements of the machine's limits, take turns in random order; the tables show medians. Each
    memory peak is measured in its own process. A note reports whether other programs kept the machine busy. Ctrl-C
    prints the results so far; with --out, the same command continues from there. On two idle cores, ops, model, decode
    and profile together take about 30 minutes, peers about five.

    \b
    Examples:
      linnet bench ops --quick
      linnet bench ops --only linear_attention --lengths 512,2048,8192
      linnet bench ops model decode profile --out benchmarks
      linnet bench peers --threads 1 --out benchmarks
      linnet bench parallel --out benchmarks
    """
    _check(what, quick, lengths, peers, compiled, threads)

    import torch

    from linnet.bench.machine import keep_machine_memory
    from linnet.bench.measure import Effort
    from linnet.figures.figure import check_figure_matplotlib
    from linnet.ops.backend import requested_backend
    from linnet.screen import Screen

    requested_backend()  # a wrong LINNET_BACKEND is reported before anything is measured
    if threads is not None:
        torch.set_num_threads(threads)
    if what[0] in ALONE and out is not None:
        _check_folder(out)
    if what == ["parallel"]:
        _parallel(Screen(quiet=json), _sizes(lengths), quick, only, out, json)
        return
    if what == ["peers"]:
        _peers(Screen(quiet=json), _sizes(lengths), only, out, json)
        return
    sizes = _sizes(lengths)
    if out is not None:
        check_figure_matplotlib()
        _check_folder(out)
    allocator = "what is freed is kept" if keep_machine_memory() else "the system's default"
    effort = Effort(2, 0.002, 1.0, 256) if quick else Effort(5, 0.05, 3.0, 2048)
    pictures = effort if quick else Effort(3, 0.05, 20.0, 2048)  # large ones take seconds
    plans = {
        "ops": lambda: _ops(sizes, quick, peers, only),
        "model": lambda: _model(sizes, quick, compiled, only),
        "decode": lambda: _decode(sizes, quick, only),
        "profile": lambda: _profile(quick, only),
        "vision": lambda: _vision(sizes, quick, only),
    }
    results: dict[str, Any] = {}
    for name in dict.fromkeys(what):
        bench = plans[name]()
        if not any(group.jobs for group in bench.groups):
            raise InputError(f"--only is {only!r}: nothing has {only!r} in its name")
        bench = bench._replace(settings={**bench.settings, "allocator": allocator, "quick": quick})
        words = _given(quick, lengths, only, peers, compiled, threads)
        results[name] = _run(
            bench,
            pictures if name == "vision" else effort,
            out,
            shlex.join(["linnet", "bench", name, *words]),
            Screen(quiet=json),
        )
        if not json:
            _print(results[name])
        if not results[name]["complete"]:
            break
    _finish(results, out, json)


def _check(what: list[str], quick: bool, lengths: str | None, peers: bool, compiled: bool, threads: int | None) -> None:
    """Raise for unknown names and for options that cannot be combined."""
    for name in what:
        if name not in (*KINDS, *ALONE):
            raise unknown_name_error("benchmark", name, (*KINDS, *ALONE))
    if compiled and what != ["model"]:
        raise InputError("--compile works only with `linnet bench model`: ops and decoding steps are not compiled")
    if "profile" in what and lengths:
        raise InputError(f"--lengths is {lengths!r}: profile always uses the size of the bounds")
    if "peers" in what and (len(what) > 1 or quick or not peers):
        raise InputError("peers runs alone: it accepts only --lengths, --only, --threads, --out and --json")
    if "parallel" in what and (len(what) > 1 or not peers or threads is not None):
        raise InputError("parallel runs alone: it accepts only --lengths, --quick, --only, --out and --json")


def _ops(sizes: list[int] | None, quick: bool, peers: bool, only: str) -> "Bench":
    from linnet.bench.ops import ops_bench

    return ops_bench(sizes, quick, peers, only)


def _model(sizes: list[int] | None, quick: bool, compiled: bool, only: str) -> "Bench":
    from linnet.bench.model import model_bench

    return model_bench(sizes, quick, compiled, only)


def _decode(sizes: list[int] | None, quick: bool, only: str) -> "Bench":
    from linnet.bench.decode import decode_bench

    return decode_bench(sizes, quick, only)


def _profile(quick: bool, only: str) -> "Bench":
    from linnet.bench.profile import profile_bench

    return profile_bench(quick, only)


def _vision(sizes: list[int] | None, quick: bool, only: str) -> "Bench":
    from linnet.bench.vision import vision_bench

    return vision_bench(sizes, quick, only)


def _sizes(lengths: str | None) -> list[int] | None:
    """The numbers of `--lengths`, in order."""
    if lengths is None:
        return None
    parts = lengths.split(",")
    if not all(part.strip().isdecimal() and 0 < int(part) <= 2**20 for part in parts):
        raise InputError(f"--lengths is {lengths!r}: it must be numbers from 1 to 1,048,576, separated by commas")
    return sorted({int(part) for part in parts})


def _given(quick: bool, lengths: str | None, only: str, peers: bool, compiled: bool, threads: int | None) -> list[str]:
    """The options that were given, as they would be typed."""
    flags = {"--quick": quick, "--no-peers": not peers, "--compile": compiled}
    values = {"--lengths": lengths, "--only": only or None, "--threads": threads}
    chosen = [str(word) for pair in values.items() if pair[1] is not None for word in pair]
    return [flag for flag, wanted in flags.items() if wanted] + chosen


def _check_folder(out: Path) -> None:
    """Create the folder, before anything is measured."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is not a folder")
    out.mkdir(parents=True, exist_ok=True)


def _run(bench: "Bench", effort: Any, out: Path | None, command: str, screen: "Screen") -> dict[str, Any]:
    """Run one benchmark with progress; in `out` it is NAME.partial.json until it is complete."""
    from linnet.bench.measure import measure_bench
    from linnet.storage import IDLE, clean_temporary_files, file_beside, write_json_file

    for place in [] if out is None else [out, file_beside(out, ".md").absolute().parent]:
        clean_temporary_files(place, IDLE, shared=True)  # leftovers of a killed benchmark
    partial = out / f"{bench.name}.partial.json" if out is not None else None
    try:
        result = measure_bench(bench, effort, partial, screen.work(f"measuring {bench.name}"))
    finally:
        screen.close()
    result["command"] = command
    if out is not None and partial is not None and result["complete"]:
        write_json_file(out / f"{bench.name}.json", result)
        partial.unlink(missing_ok=True)
    return result


def _print(result: dict[str, Any]) -> None:
    """Print the tables of a measurement."""
    from linnet.bench.tables import bench_crossover_table, bench_missing, bench_note, bench_tables

    tables = [*bench_tables(result), *([bench_crossover_table(result)] if result["bench"] == "ops" else [])]
    for table in tables:
        if table.rows:
            print(f"{table.title}:")
            print_cli_table(table.columns, table.rows)
            print()
    print(bench_note(result), *(f"Not measured: {line}" for line in bench_missing(result)), sep="\n")


def _finish(results: dict[str, Any], out: Path | None, json: bool) -> None:
    """Write the page and its figures, print the bounds, and set the exit code."""
    from linnet.bench.bounds import bench_bounds_table
    from linnet.bench.page import render_bench_page

    done = all(result["complete"] for result in results.values())
    files = render_bench_page(out) if out is not None and done else []
    if json:
        print_cli_json({**results, "files": [str(file) for file in files]})
    else:
        table = bench_bounds_table(results)
        if any(line[-1] != "not measured" for line in table.rows):
            print(f"\n{table.title}:")
            print_cli_table(table.columns, table.rows)
        for file in files:
            print(file)
    if not done:
        raise typer.Exit(130)


def _peers(screen: "Screen", lengths: list[int] | None, only: str, out: Path | None, json: bool) -> None:
    """Measure linnet's mechanisms beside public implementations, print the table, and write it to a folder."""
    from linnet.bench.pairs import (
        LENGTHS,
        PAIRS,
        bench_pairs_note,
        bench_pairs_page,
        bench_pairs_table,
        measure_bench_pairs,
    )
    from linnet.storage import read_json_file, write_json_file

    pairs = [pair for pair in PAIRS if only in pair.mechanism]
    if not pairs:
        raise InputError(f"--only is {only!r}: no mechanism has {only!r} in its name")
    file = None if out is None else out / "peers.json"
    before = read_json_file(file) if file is not None and file.exists() else None

    def keep(found: dict[str, Any]) -> None:
        if file is not None:
            write_json_file(file, found)
            file.with_suffix(".md").write_text(bench_pairs_page(found))

    try:
        work = screen.work(f"measuring {len(pairs)} pairs of implementations")
        found = measure_bench_pairs(pairs, lengths or LENGTHS, progress=work, keep=keep, before=before)
    finally:
        screen.close()
    table = bench_pairs_table(found)
    if json:
        print_cli_json(found)
        return
    if table.rows:
        print_cli_table(table.columns, table.rows)
    print(bench_pairs_note(found))


def _parallel(
    screen: "Screen", lengths: list[int] | None, quick: bool, only: str, out: Path | None, json: bool
) -> None:
    """Measure one sequence over one and two processes, print the tables, and write them to a folder."""
    from linnet.bench.parallel import CASES, ROUNDS, TOKENS, measure_parallel_bench
    from linnet.bench.parallel_page import (
        bench_parallel_fit,
        bench_parallel_forecast,
        bench_parallel_note,
        bench_parallel_page,
        bench_parallel_tables,
    )
    from linnet.storage import read_json_file, write_json_file

    cases = [case for case in CASES if only in case]
    if not cases:
        raise InputError(f"--only is {only!r}: no model has {only!r} in its name")
    file = None if out is None else out / "parallel.json"
    before = read_json_file(file) if file is not None and file.exists() else None
    given = None if lengths is None else ",".join(map(str, lengths))
    command = shlex.join(["linnet", "bench", "parallel", *_given(quick, given, only, True, False, None)])
    tokens = lengths or ((64, 128) if quick else TOKENS)

    def keep(found: dict[str, Any]) -> None:
        if file is not None and found["rows"]:
            write_json_file(file, {**found, "command": command})
            file.with_suffix(".md").write_text(bench_parallel_page({**found, "command": command}))

    try:
        work = screen.work("measuring one sequence over two processes")
        found = measure_parallel_bench(cases, tokens, 1 if quick else ROUNDS, progress=work, keep=keep, before=before)
    finally:
        screen.close()
    keep(found)
    if json:
        print_cli_json({**found, "command": command})
        return
    for table in (*bench_parallel_tables(found), bench_parallel_fit(found), bench_parallel_forecast(found)):
        print(f"{table.title}:")
        print_cli_table(table.columns, table.rows)
        print()
    print(bench_parallel_note(found))
