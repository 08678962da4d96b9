"""The images part of a report: its file, damage to it, and the page in a real browser."""

import base64
import json
import shutil

import numpy as np
import pytest
import torch

import linnet
from linnet.cli.app import run_app
from linnet.errors import LinnetError
from linnet.figures.heatmap import unpack_heatmap
from linnet.report.page import write_report_page
from linnet.report.pictures import describe_pictures, read_pictures
from tests.report.browser import browser, program

SETS = ["data.patch=2", "train.steps=2", "train.warmup=0", "train.eval_every=2", "train.save_every=2"]
METRICS = {"split": "valid", "accuracy": 0.5, "samples": 4, "classes": ["a", "b"], "confusion": [[1, 1], [1, 1]]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two analyzed runs on digits: softmax, and windows then linear attention."""
    folder = tmp_path_factory.mktemp("pictures")
    for name in ("vanilla", "transnormer_t2"):
        sets = [part for text in (*SETS, f"model.preset={name}_vit_small") for part in ("--set", text)]
        assert run_app(["train", "digits", *sets, "--out", str(folder / name), "--json"]) == 0
        names = ["--instrument", "entropy"]
        assert run_app(["analyze", str(folder / name), *names, "--json"]) == 0
    return folder


def test_the_file_of_a_run(runs):
    found = read_pictures(runs / "vanilla/analysis/pictures.json")
    assert (found["size"], found["channels"], found["grid"]) == (8, 1, 4)
    assert found["classes"] == list("0123456789")
    assert np.sum(found["confusion"]) == found["samples"] == 269
    assert found["accuracy"] == pytest.approx(np.trace(found["confusion"]) / 269)
    assert len(found["pictures"]) == 24
    assert [("maps" in picture) for picture in found["pictures"]] == [True] * 6 + [False] * 18
    assert sum(found["pictures"][0]["shares"]) == pytest.approx(1, abs=1e-3)
    assert read_pictures(runs / "nothing.json") is None


@pytest.mark.parametrize("window", [1, 2])
def test_maps_are_in_rows_of_patches(window):
    """Whatever the order of the tokens, row i of a map is patch i of the image, counted along its rows."""
    torch.manual_seed(0)
    fields = {"image_size": 8, "patch": 2, "channels": 1, "classes": 2, "pool": "class", "layers": ["softmax"]}
    model = linnet.create_model("vanilla_vit_small", window=window, **fields).eval()
    pixels = torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)
    found = describe_pictures(model, pixels, [0, 1], METRICS)
    A = unpack_heatmap(found["pictures"][1]["maps"][0][3])
    x = model.blocks[0].before(model._place(model.embed(pixels), torch.arange(17)))
    own = model.blocks[0].mixers[0].weights(x)[1, 3]
    order = model.embedding.order
    expected = torch.empty(17, 17)
    expected[order[:, None], order[None, :]] = own
    np.testing.assert_allclose(A, expected[:16, :16].detach().numpy(), rtol=2e-3, atol=1e-7)
    assert (
        np.frombuffer(base64.b64decode(found["pictures"][1]["pixels"]), np.uint8).tolist()
        == pixels[1].flatten().tolist()
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"format": "other"}, "format"),
        ({"grid": 3}, "grid"),
        ({"size": 10**9}, "size"),
        ({"classes": 3}, "classes"),
        ({"confusion": [[1]]}, "confusion"),
        ({"confusion": [[float("inf")] * 10] * 10}, "confusion"),
        ({"accuracy": float("nan")}, "accuracy"),
        ({"pictures": [{"pixels": "", "label": 0, "shares": [0.1] * 10}]}, "pixels"),
        ({"pictures": [{}]}, "pixels"),
        ({"pictures": 3}, "int"),
    ],
)
def test_a_damaged_file_is_one_line(runs, tmp_path, change, field):
    table = json.loads((runs / "vanilla/analysis/pictures.json").read_text())
    (tmp_path / "pictures.json").write_text(json.dumps({**table, **change}))
    with pytest.raises(LinnetError) as error:
        read_pictures(tmp_path / "pictures.json")
    assert str(error.value).startswith(f"{tmp_path / 'pictures.json'} is not a file of images")
    assert field in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(program() is None, reason="needs a browser: chromium is not installed")
def test_a_patch_shows_what_it_reads(runs, tmp_path):
    hostile = "</script><script>window.hacked = 1</script>"
    names = {}
    for name in ("vanilla", "transnormer_t2"):
        copy = shutil.copytree(runs / name, tmp_path / name)
        table = json.loads((copy / "analysis/pictures.json").read_text())
        table["classes"][3] = hostile
        (copy / "analysis/pictures.json").write_text(json.dumps(table))
        names[name] = table
    write_report_page([tmp_path / "vanilla", tmp_path / "transnormer_t2"], tmp_path / "two.html")
    with browser(tmp_path / "profile") as chromium:
        chromium.open(tmp_path / "two.html", fragment="#2")
        tabs = chromium.script("[...document.querySelectorAll('[role=tab]')].map(tab => tab.textContent)")
        assert tabs[2] == "Pictures"
        assert chromium.script("document.querySelectorAll('.gallery .small canvas').length") == 48
        assert chromium.script("document.querySelectorAll('.confusion td').length") == 200
        chromium.script("document.querySelectorAll('.small button')[2].click()")
        pixel = "[...document.querySelectorAll('.large')[{}].getContext('2d').getImageData({}, {}, 1, 1).data]"
        before = [chromium.script(pixel.format(k, 20, 20)) for k in (0, 1)]
        box = chromium.script("document.querySelector('.large').getBoundingClientRect().toJSON()")
        chromium.point(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.9)  # patch (3, 1)
        said = chromium.script("[...document.querySelectorAll('.gallery .readout')].map(p => p.textContent)")
        for text, (name, table) in zip(said, names.items(), strict=True):
            row = unpack_heatmap(table["pictures"][2]["maps"][0][0])[13]
            top = int(np.abs(row).argmax())
            start = f"patch (3, 1) reads ({top // 4}, {top % 4}) most: "
            assert text.startswith(start), name
            assert float(text.removeprefix(start).partition(";")[0]) == pytest.approx(
                row[top], rel=5e-3
            )  # three digits
        assert [chromium.script(pixel.format(k, 20, 20)) for k in (0, 1)] != before  # darkened where nothing is read
        chromium.script(
            "const s = document.querySelector('.look-layer'); s.value = 3; s.dispatchEvent(new Event('change'))"
        )
        after = chromium.script("document.querySelector('.gallery .readout').textContent")
        assert after.startswith("patch (3, 1) reads")
        assert after != said[0]
        chromium.point(1, 1)
        assert chromium.script("document.querySelector('.gallery .readout').textContent") == "Point at a patch."
        assert chromium.script("document.documentElement.scrollWidth <= innerWidth")
        assert chromium.errors == []
        assert chromium.script("typeof window.hacked") == "undefined"
