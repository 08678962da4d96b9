"""`bench vision`: every mechanism is measured at every resolution, and the tables name the crossover."""

import json
import re
from pathlib import Path

import pytest

import linnet
from linnet.bench.measure import Effort, measure_bench
from linnet.bench.page import bench_page_text, read_bench_page
from linnet.bench.tables import bench_figures, bench_tables
from linnet.bench.vision import prepare_vision_bench, vision_bench, vision_bench_config
from linnet.cli.app import run_app
from linnet.errors import InputError


def test_every_mechanism_is_measured_and_runs():
    bench = vision_bench(quick=True)
    jobs = [job for group in bench.groups for job in group.jobs]
    wanted = {name for name in linnet.list_attention() if linnet.describe_attention(name)["bidirectional"]}
    assert {job["case"] for job in jobs} == wanted | {"transnormer_t2"}
    assert {job["tokens"] for job in jobs} == {64, 256}
    assert {job["tokens"] for group in vision_bench().groups for job in group.jobs} == {4**k for k in range(3, 9)}
    bench = bench._replace(groups=[group._replace(memory=False) for group in bench.groups])
    result = measure_bench(bench, Effort(rounds=1, least=0.0, limit=60.0, yardstick=16))
    assert not {row["case"]: row["reason"] for row in result["rows"] if "reason" in row}
    titles = [table.title for table in bench_tables(result)]
    assert "training step: faster than softmax" in titles
    assert [len(figures) for figures in bench_figures(result).values()] == [3]


def test_the_model_is_the_small_preset_with_two_layers():
    config = vision_bench_config("transnormer_t2", 1024)
    assert (config.layers, config.image_size, config.grid) == (("diag", "norm"), 128, 32)
    assert (config.window, config.options["diag"]["block"]) == (8, 64)
    job = {"case": "norm", "pass": "train", "tokens": 64}
    prepare_vision_bench(job)()


def test_the_crossover_is_where_it_becomes_faster():
    def row(case, tokens, seconds):
        about = {"table": "vision", "case": case, "form": "bidirectional", "pass": "inference", "batch": 1}
        return {**about, "tokens": tokens, "seconds": seconds, "low": seconds, "high": seconds}

    rows = [row("softmax", N, N * N / 1e6) for N in (64, 256, 1024)] + [row("lln", N, N / 1e3) for N in (64, 256, 1024)]
    about = {"settings": {}, "environment": {}, "skipped": [], "complete": True, "seconds": 1.0}
    result = {"format": "linnet-bench-1", "bench": "vision", "rows": rows, **about}
    table = next(t for t in bench_tables(result) if t.title == "forward: faster than softmax")
    assert table.rows == [["lln", "1,024", "1.02 at 1 x 1,024"]]


def test_pixels_that_patches_do_not_divide_are_one_line(capfd):
    with pytest.raises(InputError, match="--lengths has 30: for vision they are pixels, multiples of 4"):
        vision_bench([30])
    assert run_app(["bench", "vision", "--lengths", "30"]) == 2
    assert len(capfd.readouterr().err.strip().splitlines()) == 1


def test_the_command(capfd):
    assert run_app(["bench", "vision", "--quick", "--only", "softmax", "--lengths", "16", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)["vision"]
    assert {row["pass"] for row in found["rows"]} == {"inference", "train"}
    assert all(row["memory"] > 0 for row in found["rows"] if row["pass"] == "train")


def test_the_committed_page_is_rendered_from_the_committed_numbers():
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "resolution.md").read_text()
    assert bench_page_text(read_bench_page(docs / "resolution"), "resolution") in text
    assert len(re.findall("faster than softmax", text)) >= 2
