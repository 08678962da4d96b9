"""Benchmarks as tables, figures and a page; the committed page matches the committed numbers."""

import copy
import hashlib
import re
from pathlib import Path

import pytest
from PIL import Image

from linnet.bench.bounds import bench_bounds, bench_bounds_table
from linnet.bench.page import DIGEST, bench_page_text, read_bench_page
from linnet.bench.tables import (
    bench_crossover_table,
    bench_figures,
    bench_missing,
    bench_note,
    bench_table_exponent,
    bench_table_share,
    bench_tables,
)
from linnet.errors import InputError
from linnet.figures.page import BEGIN, END

DOCS = Path(__file__).parents[2] / "docs"
SETTINGS = {"heads": 8, "head_dim": 64, "type": "float32", "rounds": 5, "limit": 3.0, "allocator": "kept"}
WHERE = {"torch": "2", "threads": 2, "cores": 2, "machine": "m"}
FRAME = {"format": "linnet-bench-1", "settings": SETTINGS, "environment": WHERE, "skipped": [], "complete": True}


def row(case: str, tokens: int, seconds: float | None, batch: int = 4, **more: object) -> dict:
    base = {"table": "ops", "case": case, "form": "causal", "pass": "forward+backward", "group": "op", "includes": "x"}
    base |= {"batch": batch, "tokens": tokens, "bytes": 1, "flops": 10**9, "memory": tokens * 2**20}
    measured = {"seconds": seconds, "low": seconds, "high": seconds, "others": 0.0, "gemm": 1e11, "copy": 1e10}
    return base | (measured if seconds is not None else {"reason": "too slow"}) | more


def ops(*rows: dict) -> dict:
    return {**FRAME, "bench": "ops", "rows": list(rows), "seconds": 60.0}


def test_an_exponent_is_the_slope_at_the_smallest_batch():
    rows = [row("a", N, 1e-6 * N**1.5, batch=1) for N in (100, 400, 1600)] + [row("a", 100, 9.0, batch=4)]
    assert bench_table_exponent(rows, "seconds") == pytest.approx(1.5)
    assert bench_table_exponent(rows[:1], "seconds") is None
    assert bench_table_exponent([], "seconds") is None


def test_the_share_is_of_the_limit_that_binds():
    assert bench_table_share(row("a", 1, 0.1)) == pytest.approx(
        0.1
    )  # 1e9 operations at 1e11 a second: 0.01 of 0.1 seconds
    assert bench_table_share(row("a", 1, 0.1, bytes=5 * 10**8)) == pytest.approx(0.5)
    assert bench_table_share(row("a", 1, None)) is None


def test_tables_have_a_line_for_each_case_and_a_column_for_each_size():
    result = ops(row("a", 100, 0.1), row("b", 100, 0.02), row("a", 200, None), row("b", 200, 0.04))
    time, memory = [table for table in bench_tables(result) if table.rows]
    assert time.columns == ["attention", "includes", "4 x 100", "4 x 200", "exponent"]
    assert time.rows == [["a", "x", "100 ms, 10%", "-", "-"], ["b", "x", "20 ms, 50%", "40 ms, 25%", "1.00"]]
    assert memory.rows[1] == ["b", "100 MiB", "200 MiB", "1.00"]


def test_the_crossover_against_softmax():
    sdpa = [row("torch SDPA", N, t, group="plain") for N, t in ((1, 1.0), (2, 4.0), (4, 16.0))]
    slow, fast, later = ([row(name, N, t) for N, t in zip((1, 2, 4), times, strict=True)] for name, times in
                         (("slow", (9, 9, 17)), ("fast", (0.5, 1, 2)), ("later", (2, 4.5, 9))))  # fmt: skip
    found = {line[0]: line[2:] for line in bench_crossover_table(ops(*sdpa, *slow, *fast, *later)).rows}
    assert found["slow"] == ["more than 4", "0.941 at 4 x 4"]
    assert found["fast"] == ["1 or less", "8 at 4 x 4"]
    assert found["later"][0] == "4"


def test_notes_say_what_disturbed_and_what_is_missing():
    noisy = ops(row("a", 100, 0.1, others=1.5), row("b", 100, 0.1), row("b", 200, None))
    noisy["skipped"] = [{"case": "c", "form": "causal", "reason": "pip install c"}]
    note = bench_note(noisy)
    assert "Other programs kept up to 1.5 of 2 cores busy; 50% of the times were disturbed" in note
    assert bench_missing(noisy) == ["c, causal: pip install c.", "b, causal from 4 x 200: too slow."]
    assert "Interrupted" in bench_note({**noisy, "complete": False})
    assert "100 GFLOP/s" in note and "10.0 GB/s" in note


def test_figures_hold_softmax_the_best_backend_and_the_crossover():
    rows = [row(name, N, t * N, group=group) for N in (1, 2) for name, t, group in
            (("linear_attention, torch", 2, "op"), ("linear_attention, cpu", 1, "op"), ("torch SDPA", 4, "plain"),
             ("p", 3, "peer"))]  # fmt: skip
    time, memory, speed = bench_figures(ops(*rows))["ops-causal"]
    assert [line.name for line in time.series] == ["linear_attention, cpu", "torch SDPA", "p"]
    assert list(time.series[0].y) == [1000, 2000]
    assert list(memory.series[0].y) == [1, 2]
    assert {line.name: list(line.y) for line in speed.series}["linear_attention, cpu"] == [4, 4]


def test_bounds_are_judged():
    fast, peer, slow = (
        [row(name, N, t * N / 512e3, group=group) for N in (512, 1024, 2048, 8192)]
        for name, t, group in (("linear_attention, cpu", 1, "op"), ("p", 3, "peer"), ("batched chunks", 5, "plain"))
    )
    forward = row("linear_attention, cpu", 8192, 0.02, **{"pass": "forward"})  # half of the product's speed
    floor = 4 * 4 * 4 * 8 * 64 * 4096
    memory = row("linear_attention, cpu", 4096, 1.0, memory=floor)
    judged = {bound.what: bound for bound in bench_bounds({"ops": ops(*fast, *peer, *slow, forward, memory)})}
    against = "causal linear attention against "
    assert judged[f"{against}the fastest peer, N = 2,048"].reached is True
    assert judged[f"{against}the fastest peer, N = 8,192"].reached is False
    assert judged[f"{against}the fastest peer, N = 8,192"].measured == "3.00x (linear_attention, cpu against p)"
    assert judged[f"{against}batched chunks, N = 8,192"].reached is True
    shared = judged["share of the matrix product's speed, causal forward, N = 8,192"]
    assert shared.measured == "50% of the useful operations; 215% of 4 D^2 alone"  # this row's operations are made up
    assert shared.reached is False
    assert judged["memory of causal forward+backward over its floor, N = 4,096"].measured == "1.00x"
    assert judged["lln against the released formula, N = 2,048"].reached is None


@pytest.mark.parametrize("name,form", [("linear attention", "causal"), ("lln", "causal"), ("lln", "bidirectional")])
def test_exponents_are_those_of_batch_1_from_4096_tokens(name, form):
    case = "linear_attention, cpu" if "linear" in name else name
    rows = [row(case, N, 1e-6 * N**1.2, batch=1, form=form) for N in (4096, 16384, 65536)]
    rows += [row(case, N, 1.0, batch=batch, form=form) for N, batch in ((512, 1), (8192, 4))]
    judged = {bound.what: bound for bound in bench_bounds({"ops": ops(*rows)}) if bound.reached is not None}
    time = judged[f"exponent of time against N, {name}, {form}"]
    assert (time.measured, time.reached) == ("1.200", False)
    assert judged[f"exponent of memory against N, {name}, {form}"].reached is True


def test_bounds_of_models_and_steps():
    kind = {"table": "model", "pass": "train", "batch": 32}
    model = {**ops(row("softmax", 2048, 4.4, **kind), row("transnormer_t2", 2048, 1.0, **kind)), "bench": "model"}
    core = {"table": "core", "pass": "step", "batch": 1}
    steps = [row("norm", 1024, 10e-6, **core), row("norm", 65536, 10.6e-6, **core)]
    table = bench_bounds_table({"model": model, "decode": {**ops(*steps), "bench": "decode"}})
    lines = {line[0]: line[1:] for line in table.rows}
    assert lines["training step of TransNormer T2 against softmax, N = 2,048, batch 32"][-1] == "reached"
    assert lines["step of norm at context 65,536 against 1,024"] == ["at most 1.05x", "1.06x", "not reached"]
    assert lines["step of norm, batch 1"] == ["at most 12 us", "10.0 us", "reached"]
    assert lines["step of lln, batch 1"][-1] == "not measured"


GOOD = ops(row("a", 1, 1.0))


@pytest.mark.parametrize(
    "broken", [{}, [], None, {**GOOD, "format": "x"}, {**GOOD, "bench": "x"}, {**GOOD, "rows": [{"case": "a"}]}]
)
def test_anything_but_a_benchmark_is_one_line(broken):
    with pytest.raises(InputError, match="not a measurement of `linnet bench`"):
        bench_tables(copy.deepcopy(broken))


def test_a_folder_without_benchmarks_says_how_to_make_one(tmp_path):
    with pytest.raises(InputError, match="holds no benchmark: linnet bench ops --out"):
        read_bench_page(tmp_path)


def test_the_committed_page_is_rendered_from_the_committed_numbers():
    results, page = read_bench_page(DOCS / "benchmarks"), (DOCS / "benchmarks.md").read_text()
    shown = re.search(f"{BEGIN}\n(.*)\n{END}", page, re.DOTALL)
    assert shown, "the page has its markers"
    assert shown[1] == bench_page_text(results, "benchmarks")
    assert set(results) == {"ops", "model", "decode", "profile"}
    for name, result in results.items():
        digest = hashlib.sha256((DOCS / "benchmarks" / f"{name}.json").read_bytes()).hexdigest()
        for stem in bench_figures(result):
            with Image.open(DOCS / "benchmarks" / f"{stem}.png") as picture:
                assert picture.text[DIGEST] == digest
