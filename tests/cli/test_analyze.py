"""`linnet analyze`: numbers, tables and figures of a real run, and one-line errors for unreadable input."""

import json
import math
import os
import shutil
import sys

import pytest
from PIL import Image

from linnet.cli.app import run_app as linnet
from linnet.errors import InputError, LinnetError
from linnet.figures.heatmap import unpack_heatmap
from linnet.instruments.analyze import FORMAT, analysis_rows, analyze_views, check_analysis
from linnet.registry import INSTRUMENT


@pytest.fixture(scope="module")
def analyzed(trained, tmp_path_factory):
    """A copy of the run, analyzed by every instrument."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("analyzed") / "tiny")
    every = [part for name in INSTRUMENT.names() for part in ("--instrument", name)]
    assert linnet(["analyze", str(folder), "--samples", "2", *every]) == 0
    return folder


def test_the_files(analyzed):
    found = json.loads((analyzed / "analysis/analysis.json").read_text())
    assert found["format"] == FORMAT
    assert (found["length"], found["sequences"], found["causal"], len(found["tokens"])) == (32, 2, True, 32)
    assert [layer["name"] for layer in found["layers"]] == ["layer 0 diag", "layer 1 norm"]
    for layer in found["layers"]:
        values = layer["values"]
        assert len(values["entropy"]["bits"]) == len(layer["maps"]) == 2
        assert all(0 < bits < 5 for bits in values["entropy"]["bits"])
        assert len(values["local_score"]["curve"][0]) == 100
        assert "diagonal" in layer["refused"]["spectral_gap"]  # a causal model has no gap worth the name
        weights = unpack_heatmap(layer["maps"][0])
        assert weights.shape == (32, 32)
        assert weights.sum(axis=1) == pytest.approx([1] * 32, rel=1e-2)
        assert abs(weights[0, 1:]).max() == 0  # causal
    drawn = {path.name for path in (analyzed / "analysis").glob("*.png")}
    assert drawn == {"layers.png", "locality.png", "law.png", "maps.png"}
    for name in drawn:
        with Image.open(analyzed / "analysis" / name) as picture:
            assert picture.size[0] > 800


def test_the_table(analyzed, run):
    code, out, err = run("analyze", analyzed, "--instrument", "entropy", "--out", analyzed / "few")
    assert code == 0
    assert err.startswith("measuring 2 layers on 4 x 32 tokens")
    head, *lines = out.splitlines()
    assert head.split() == ["0", "diag", "1", "norm"]
    assert lines[0].startswith("entropy (bits)")
    assert lines[1].startswith("share of the largest")
    assert str(analyzed / "few/analysis.json") in lines
    few = ["--instrument", "entropy", "--samples", "1"]
    code, out, err = run("analyze", analyzed, *few, "--out", analyzed / "few", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["command"].endswith("--samples 1 --instrument entropy")
    assert "maps" not in found["layers"][0]
    assert found["layers"][0]["values"]["entropy"]["bits"]


def test_a_text_of_ones_own(analyzed, run, tmp_path):
    text = tmp_path / "my.txt"
    text.write_text("to be or not to be")
    code, out, _ = run("analyze", analyzed, "--text", text, "--out", tmp_path / "out", "--format", "pdf", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["tokens"], found["separator"]) == (list("to be or not to be"), "")
    assert (tmp_path / "out/maps.pdf").read_bytes().startswith(b"%PDF")
    assert "--text" in found["command"]


def test_an_exported_model_reads_a_text(trained, run, tmp_path):
    model, text = tmp_path / "model", tmp_path / "my.txt"
    text.write_text("abc")
    assert run("export", trained, "--out", model)[0] == 0
    assert run("analyze", model, "--text", text, "--out", tmp_path / "out", "--instrument", "entropy")[0] == 0
    code, out, err = run("analyze", model)
    assert (code, out) == (2, "")
    assert "give a text with --text FILE" in err


@pytest.mark.parametrize(
    ("content", "options", "line"),
    [
        ("", [], "has 0 tokens: it needs at least two"),
        ("a", [], "has 1 tokens"),
        ("long " * 20, [], "has 100 tokens, the model's context 32: set --tokens to at most 32"),
        (b"\xff\xfe", [], "is not UTF-8 text"),
        (None, [], "No such file"),
        ("some text", ["--instrument", "entropi"], "unknown instrument 'entropi': did you mean 'entropy'?"),
        ("some text", ["--format", "gif"], "unknown format 'gif'"),
        ("some text", ["--tokens", "1"], "--tokens"),
        ("some text", ["--samples", "2"], "--samples counts validation blocks: it cannot be used with --text"),
    ],
)
def test_unreadable_files_are_one_line(trained, run, tmp_path, content, options, line):
    text = tmp_path / "my.txt"
    if content is not None:
        text.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = run("analyze", trained, "--text", text, "--out", tmp_path / "out", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert line in err
    assert not (tmp_path / "out").exists()


def test_weights_that_are_not_numbers_are_one_line(trained, run, tmp_path):
    import torch

    from linnet.models.loading import export_model, load_model

    model, text = load_model(trained), tmp_path / "my.txt"
    with torch.no_grad():
        model.blocks[1].mixers[0].qkv.weight.fill_(math.nan)
    export_model(model, tmp_path / "model", trained / "tokenizer.json")
    text.write_text("some text")
    code, out, err = run("analyze", tmp_path / "model", "--text", text, "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "layer 1 norm: a weight is NaN or infinite" in err
    assert not (tmp_path / "model/analysis").exists()


@pytest.mark.parametrize("place", ["file", "file/deeper"])
def test_results_need_a_folder(trained, run, tmp_path, place):
    (tmp_path / "file").write_text("")
    code, out, err = run("analyze", trained, "--out", tmp_path / place)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{tmp_path / 'file'} is a file, and the results need a folder" in err


def test_without_matplotlib_there_are_no_figures(trained, run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    some = ["--instrument", "entropy", "--out", tmp_path / "out"]
    left = tmp_path / "out/.linnet-analysis.json-999999999-0123abcd.tmp"  # of a killed process: none has such a number
    left.parent.mkdir()
    left.touch()
    os.utime(left, (0, 0))
    code, out, err = run("analyze", trained, *some)
    assert code == 0
    assert out.splitlines()[1].startswith("entropy (bits)")
    assert "no figures: a figure needs matplotlib" in err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["analysis.json"]
    code, out, err = run("analyze", trained, *some, "--format", "png")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_what_is_refused_has_no_table(trained, run, tmp_path):
    code, out, _ = run("analyze", trained, "--instrument", "spectral_gap", "--out", tmp_path / "out")
    assert code == 0
    assert out.splitlines()[0].startswith("spectral_gap: the eigenvalues of causal weights are their diagonal")


def test_a_longer_text_is_read_if_asked_for(trained, run, tmp_path):
    text = tmp_path / "my.txt"
    text.write_text("long " * 20)
    options = ["--tokens", 60, "--instrument", "entropy", "--out", tmp_path / "out", "--json"]
    assert json.loads(run("analyze", trained, "--text", text, *options)[1])["length"] == 60


def test_a_folder_that_is_not_a_run_is_one_line(run, tmp_path):
    code, out, err = run("analyze", tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_numbers_that_are_not_finite_are_null_in_the_file():
    import torch

    from linnet.instruments.base import instrument_view_of_weights

    flat = analyze_views([instrument_view_of_weights(torch.full((1, 4, 4), 0.25))], ["temperature", "entropy"])
    assert flat["layers"][0]["values"]["temperature"]["weights"] == [None]
    columns, lines = analysis_rows(flat)
    assert [line[0] for line in lines] == ["entropy (bits)", "share of the largest"]
    assert math.isclose(flat["layers"][0]["values"]["entropy"]["bits"][0], 2)
    with pytest.raises(InputError, match="no attention"):
        analyze_views([])


@pytest.mark.parametrize("bad", [None, [], {}, {"format": FORMAT}, {"format": FORMAT, "layers": [{}], "length": 1}])
def test_anything_but_an_analysis_is_one_line(bad):
    with pytest.raises(LinnetError, match="not an analysis"):
        check_analysis(bad)


def test_a_model_of_no_text_reads_none(trained, run, tmp_path):
    folder, text = shutil.copytree(trained, tmp_path / "run"), tmp_path / "my.txt"
    (folder / "tokenizer.json").unlink()
    text.write_text("some text")
    code, out, err = run("analyze", folder, "--text", text, "--out", tmp_path / "out")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "has no tokenizer, so it is not a text model" in err
    assert not (tmp_path / "out").exists()
