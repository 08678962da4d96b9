"""`linnet bench`: tables, JSON, a page with figures; Ctrl-C prints the results so far."""

import json
import os

import pytest
from PIL import Image

from linnet.bench import measure
from linnet.ops.backend import no_cpu_backend


def test_a_benchmark_prints_its_tables_and_notes(run):
    code, out, err = run("bench", "decode", "--quick", "--only", "norm")
    assert (code, err) == (0, "measuring decode\n")
    assert "step of a core: time:" in out
    assert "exponent" in out
    assert "Tiny sizes" in out


def test_json_is_all_there_is_on_standard_output(run):
    code, out, err = run("bench", "ops", "--quick", "--only", "block_attention, torch", "--lengths", "32,64", "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)["ops"]
    assert result["command"] == "linnet bench ops --quick --lengths 32,64 --only 'block_attention, torch'"
    assert {row["tokens"] for row in result["rows"]} == {32, 64}
    assert all(row["memory"] >= 0 and row["seconds"] > 0 for row in result["rows"])


def test_a_folder_gets_json_pictures_and_a_page(run, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    left = [place / ".linnet-x-999999999-0123abcd.tmp" for place in (tmp_path, folder)]  # no process has such a number
    for path in left:
        path.touch()
        os.utime(path, (0, 0))
    code, out, _ = run("bench", "model", "decode", "--quick", "--only", "norm", "--out", folder)
    assert not any(path.exists() for path in left)
    assert code == 0
    assert {path.name for path in folder.iterdir()} == {
        *("model.json", "decode.json", "model.png", "layer.png", "decode.png")
    }
    with Image.open(folder / "layer.png") as picture:
        assert picture.width > 100
    page = folder.with_suffix(".md").read_text()
    assert "## Models and layers" in page and "## Decoding" in page
    assert str(folder.with_suffix(".md")) in out


@pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")
def test_a_profile_lists_the_parts_of_a_call(run):
    code, out, _ = run("bench", "profile", "--quick", "--json")
    assert code == 0
    rows = {row["case"]: row for row in json.loads(out)["profile"]["rows"]}
    assert set(rows) == {"linear_attention, cpu", "lln", "lln_diag", "transnormer_t2", "softmax"}
    for row in rows.values():
        assert len(row["parts"]) > 1
        assert row["parts"][-1]["name"] == "all others"
        times = [part["seconds"] for part in row["parts"][:-1]]
        assert times == sorted(times, reverse=True)
        assert min(times) > 0
    code, out, _ = run("bench", "profile", "--quick", "--only", "lln_diag")
    assert code == 0
    assert "its tensors as a copy" in out and "all others" in out
    code, _, err = run("bench", "profile", "--lengths", "64")
    assert (code, "profile always uses the size of the bounds" in err) == (2, True)


def test_an_interrupted_benchmark_prints_its_results_and_continues(run, tmp_path, monkeypatch):
    folder, measure_group, calls = tmp_path / "b", measure._measure, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure_group(*args)

    monkeypatch.setattr(measure, "_measure", interrupted)
    command = ("bench", "decode", "--quick", "--only", "elu", "--out", folder)
    code, out, _ = run(*command)
    assert code == 130
    assert "1 x 128" in out and "1 x 256" not in out
    assert "Interrupted: these are the results so far." in out
    assert [path.name for path in folder.iterdir()] == ["decode.partial.json"]
    code, out, _ = run(*command)
    assert code == 0
    assert "1 x 256" in out
    assert sorted(path.name for path in folder.iterdir()) == ["decode.json", "decode.png"]
    assert len(calls) == 2 + 4  # of five groups, four of cores, the first was not measured again


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["layer"], "unknown benchmark 'layer'"),
        (["opps"], "did you mean 'ops'?"),
        (["ops", "--lengths", "512,x"], "--lengths is '512,x'"),
        (["ops", "--lengths", "0"], "--lengths is '0'"),
        (["decode", "--lengths", "100"], "context is 100: it must be a multiple of 128"),
        (["ops", "--compile"], "--compile works only with `linnet bench model`"),
        (["ops", "--only", "nothing"], "nothing has 'nothing' in its name"),
        (["ops", "peers"], "peers runs alone"),
        ([], "Missing argument"),
    ],
)
def test_a_bad_benchmark_is_one_line(run, args, line):
    code, out, err = run("bench", *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert line in err


def test_a_file_is_not_a_folder(run, tmp_path):
    (tmp_path / "f").write_text("")
    code, _, err = run("bench", "ops", "--out", tmp_path / "f")
    assert (code, err) == (2, f"linnet: {tmp_path / 'f'} is not a folder\n")


def test_bench_peers_prints_a_row_or_a_reason_for_each(run, monkeypatch):
    row = {"attention": "performer", "form": "causal", "tokens": 1024, "library": "theirs 1.0", "others": 0.0}
    row |= {"ours": 0.25, "theirs": 1.0, "speedup": 4.0, "products": 0.8, "with projections": True}
    settings = {"batch": 4, "heads": 8, "head_dim": 64, "size": 128, "rounds": 5, "clock": "processor"}
    absent = {"attention": "linformer", "form": "bidirectional", "tokens": 1024, "library": "linformer"}
    absent |= {"reason": "pip install it"}
    where = {"threads": 1, "torch": "2"}
    found = {"settings": settings, "environment": where, "rows": [row], "skipped": [absent]}
    monkeypatch.setattr("linnet.bench.pairs.measure_bench_pairs", lambda *given, **named: found)
    code, out, err = run("bench", "peers")
    assert (code, err) == (0, "")
    assert "4.00x" in out and "250 ms" in out
    assert "80 %" in out and "5.0x" in out  # the bound: 4 divided by the share of the products
    assert "not measured: linformer, bidirectional, 1,024 tokens: linformer: pip install it" in out
    assert json.loads(run("bench", "peers", "--json")[1]) == found


def test_a_wrong_backend_is_reported_before_anything_is_measured(run, monkeypatch):
    monkeypatch.setenv("LINNET_BACKEND", "fast")
    code, out, err = run("bench", "ops", "--quick")
    assert (code, out) == (2, "")
    assert err == "linnet: LINNET_BACKEND: unknown backend 'fast': one of cpu, reference, torch, triton\n"
