"""The report shows the files of a run, escapes all of their text, and loads nothing."""

import base64
import hashlib
import json
import os
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from linnet.cli.app import run_app as linnet
from linnet.errors import InputError, LinnetError
from linnet.figures.heatmap import unpack_heatmap
from linnet.report.page import compare_report_tables, write_report_page
from linnet.report.runs import run_number
from linnet.storage import write_json_file

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7*7 }} \" ' & &lt;"


class Page(HTMLParser):
    """A page parsed like in a browser: tags with their attributes, scripts, and the visible text."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.scripts, self.text = [], [], ""
        self.inside, self.source = "", path.read_text()
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append([dict(attrs).get("type", ""), ""])
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1][1] += data
        elif self.inside != "style":
            self.text += data

    @property
    def programs(self):
        return [script for kind, script in self.scripts if not kind]

    @property
    def charts(self):
        return [json.loads(script) for kind, script in self.scripts if kind == "application/json"]


def page(*folders, out=None) -> Page:
    return Page(write_report_page(folders, out))


def assert_safe(found: Page) -> None:
    """The page has two scripts, both allowed by the policy, no handlers and no links, and loads nothing."""
    assert len(found.programs) == 2
    (policy,) = [attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for program in found.programs:
        assert base64.b64encode(hashlib.sha256(program.encode()).digest()).decode() in policy
    for tag, attrs in found.tags:
        assert not [name for name in attrs if name.startswith("on")]
        assert {attrs.get("src"), attrs.get("href"), attrs.get("action")} <= {None, "data:,"}
        assert tag not in {"iframe", "img", "object", "embed", "base", "form", "a"}
    own = found.source.replace(found.programs[0], "")  # plotly itself names the addresses of maps, which it never asks
    assert not re.search(r"https?:|@import|url\(|//cdn", own)


def test_a_run_is_shown_whole(trained, tmp_path):
    found = page(trained, out=tmp_path / "r.html")
    assert_safe(found)
    assert found.source.count("* plotly.js v") == 1
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    valid = [record for record in records if record["split"] == "valid"]
    loss, perplexity, rate, norm = (chart["data"][0] for chart in found.charts[:4])
    assert [trace["name"] for trace in found.charts[4]["data"]] == ["layer 0", "layer 1"]  # gradients
    assert found.charts[4]["data"][0]["y"] == [record["grad_means"][1] for record in records if "grad_means" in record]
    assert loss["y"] == [record["loss"] for record in records if record["split"] == "train"]
    train, validation = found.charts[0]["data"]  # on one axis, in one color
    assert (
        validation["y"] == [record["loss"] for record in valid] and validation["name"] == f"{train['name']}, validation"
    )
    assert train["line"]["color"] == validation["line"]["color"] and train["line"]["dash"] != validation["line"]["dash"]
    assert (perplexity["x"], perplexity["y"]) == ([5, 10], [record["perplexity"] for record in valid])
    assert len(rate["y"]) == len(norm["y"]) == len(loss["y"])
    best = min(valid, key=lambda record: record["perplexity"])
    assert f"{best['perplexity']:.4g}" in found.text
    assert f"best, at step {best['step']}" in found.text
    assert "1,280" in found.text  # tokens
    assert "finished, 10 steps" in found.text
    for word in ("Each ", "target", "temperature 0.5", "diag, norm", "weight_decay", "torch", "CONTRIBUTING.md"):
        assert word in found.text


def test_the_parameter_count_is_that_of_the_model(trained, tmp_path):
    from linnet.models.loading import load_model

    parameters = sum(p.numel() for p in load_model(trained).parameters())
    assert f"{parameters:,}" in page(trained, out=tmp_path / "r.html").text


def test_the_cost_of_layers_is_shown_if_it_was_measured(copy, cost):
    folder = copy("run")
    write_json_file(folder / "cost.json", cost)
    found = page(folder)
    assert_safe(found)
    assert len(found.charts) == 7
    assert [trace["name"] for trace in found.charts[5]["data"]] == ["softmax", "diag", "∝ N", "∝ N²"]
    assert "One causal layer" in found.text


def test_hostile_text_stays_text(copy, cost):
    folder = copy("</script><script>alert(3)</script>".replace("/", "") + '"<b>')
    config = (folder / "config.toml").read_text().replace('"causal_lm"', json.dumps(HOSTILE), 1)
    (folder / "config.toml").write_text(config + f'\n["<b>key</b>"]\n"<i>" = {json.dumps(HOSTILE)}\n')
    environment = json.loads((folder / "environment.json").read_text())
    write_json_file(folder / "environment.json", {**environment, HOSTILE: HOSTILE})
    write_json_file(folder / "sample.json", {"prompt": HOSTILE, "text": HOSTILE * 2, HOSTILE: [HOSTILE]})
    rows = [{**row, "attention": HOSTILE + row["attention"]} for row in cost["rows"]]
    write_json_file(folder / "cost.json", {**cost, "rows": rows})
    other = copy("other")
    for found in (page(folder), page(folder, other, out=folder / "two.html")):
        assert_safe(found)
        assert found.text.count(HOSTILE) >= 6
        assert folder.name in found.text
        assert "<b>key</b>" in found.text
        names = [trace["name"] for chart in found.charts for trace in chart["data"]]
        assert all("<" not in name for name in names)


@pytest.mark.parametrize(
    ("metrics", "state"),
    [
        (None, "no step recorded yet"),
        ("", "no step recorded yet"),
        ('{"step": 4, "split": "train", "loss": null, "tokens": 512}\n{"step": 6, "spl', "at step 4 of 10"),
        ('{"step": 4, "split": "train", "loss": "<b>", "lr": true, "tokens": {}}\n', "at step 4 of 10"),
        ('{"step": 4, "split": "valid", "perplexity": 1e999}\n', "not evaluated yet"),
    ],
)
def test_a_run_that_has_just_begun(copy, metrics, state):
    folder = copy("run")
    for name in ("metrics.jsonl", "timings.jsonl", "environment.json", "sample.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints")
    if metrics is not None:
        (folder / "metrics.jsonl").write_text(metrics)
    found = page(folder)
    assert_safe(found)
    assert state in found.text
    assert "not evaluated yet" in found.text
    assert found.text.count("Nothing recorded yet.") >= 4
    assert found.charts == []


def test_several_runs_share_charts_and_have_a_column_each(trained, copy, tmp_path):
    other, empty = copy("other"), copy("empty")
    config = (other / "config.toml").read_text().replace("batch = 4", "batch = 999")
    (other / "config.toml").write_text(config)
    (empty / "metrics.jsonl").unlink()
    found = page(trained, other, empty, out=tmp_path / "r.html")
    assert_safe(found)
    assert [len(chart["data"]) for chart in found.charts] == [5, 3, 3, 3, 2, 2]  # two have losses and gradients
    assert "3 runs" in found.text
    assert all(name in found.text for name in ("tiny", "other", "empty", "999"))


def test_runs_with_the_same_name_are_shown_by_path(trained, copy, tmp_path):
    other = copy("tiny")
    assert [trace["name"] for trace in page(trained, other, out=tmp_path / "r.html").charts[0]["data"]] != ["tiny"] * 2


def test_compare_marks_what_differs():
    plain, table = compare_report_tables(
        [{"a": 1, "t": {"x": True, "y": [1.0, 2]}}, {"t": {"x": False, "y": [1.0, 2]}}]
    )
    assert plain == {"name": "", "rows": [{"key": "a", "values": ["1", "–"], "differs": True}]}
    assert table["name"] == "t"
    assert table["rows"][0] == {"key": "x", "values": ["yes", "no"], "differs": True}
    assert table["rows"][1] == {"key": "y", "values": ["1, 2", "1, 2"], "differs": False}


def test_numbers_are_finite_numbers():
    found = [run_number(value) for value in (1, 2.5, True, "3", None, float("nan"), float("inf"), 10**400)]
    assert found == [1.0, 2.5, None, None, None, None, None, None]


def test_a_missing_extra_is_named(trained, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(InputError, match=r"a report needs plotly: pip install '\.\[report\]' in a checkout"):
        write_report_page([trained], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_files_that_a_killed_report_left_are_removed(copy):
    folder = copy("run")
    left = folder / ".linnet-report.html-999999999-0123abcd.tmp"  # no process has such a number
    left.touch()
    os.utime(left, (0, 0))
    write_report_page([folder])
    assert not left.exists()


def test_a_damaged_file_is_named(copy):
    folder = copy("run")
    (folder / "sample.json").write_text("[1]")
    with pytest.raises(LinnetError, match=r"sample\.json is not a table"):
        write_report_page([folder])
    (folder / "sample.json").write_text("{")
    with pytest.raises(LinnetError, match=r"sample\.json is not valid JSON"):
        write_report_page([folder])


def test_the_command(copy, capsys):
    folder = copy("run")
    assert linnet(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert linnet(["report", str(folder), str(folder), "--out", str(folder / "b.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(folder / "b.html")


@pytest.mark.parametrize(
    ("folder", "options", "line"),
    [
        ("nowhere", [], "nowhere does not exist"),
        ("..", [], "is not a run: it has no config.toml"),
        (".", ["--out", "missing/r.html"], "cannot write missing/r.html: No such file or directory"),
    ],
)
def test_a_folder_without_a_run_is_refused_in_one_line(copy, monkeypatch, capsys, folder, options, line):
    monkeypatch.chdir(copy("run"))
    assert linnet(["report", folder, *options]) in (1, 2)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert line in err


@pytest.fixture(scope="session")
def watched(trained, tmp_path_factory):
    """The run with its analysis, and records of instruments during training."""
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("watched") / "watched"))
    assert linnet(["analyze", str(folder), "--samples", "1", "--json"]) == 0
    values = {"entropy": {"relative": [[0.5, 0.7], [0.9, None]]}, "temperature": {"weights": [[1.0, 2.0], None]}}
    values |= {"moment_matching": {"ratio": [[1.0, 3.0], [4.0, 4.0]]}, HOSTILE: {"ratio": [[1.0], [1.0]]}}
    record = {"split": "instruments", "layers": ["layer 0 diag", "layer 1 norm"], "values": values}
    with (folder / "metrics.jsonl").open("a") as log:
        log.writelines(json.dumps({"step": step, **record}) + "\n" for step in (5, 10))
    return folder


def test_analysis_and_instruments_are_shown(watched, trained, tmp_path):
    found = page(watched, out=tmp_path / "r.html")
    assert_safe(found)
    titles = [attrs["aria-label"] for _, attrs in found.tags if attrs.get("role") == "img"]
    by_layer = {"Entropy", "Temperature", "Local area"}
    assert by_layer | {"Locally accumulated attention", "Distribution of the weights"} <= set(titles)
    assert "attention map of watched" in titles
    along = found.charts[titles.index("Entropy during training")]
    assert [(trace["name"], trace["y"]) for trace in along["data"]] == [
        ("layer 0 diag", [0.6, 0.6]),
        ("layer 1 norm", [0.9, 0.9]),
    ]
    other = found.charts[titles.index("Moment matching: ratio during training")]
    assert [trace["y"] for trace in other["data"]] == [[2.0, 2.0], [4.0, 4.0]]
    (maps,) = [chart for chart in found.charts if "layers" in chart]
    assert [len(layer["maps"]) for layer in maps["layers"]] == [2, 2]
    assert len(maps["tokens"]) == maps["length"] == 32
    assert "share of the largest" in found.text
    two = page(watched, trained, out=tmp_path / "two.html")
    assert_safe(two)
    titles = [attrs["aria-label"] for _, attrs in two.tags if attrs.get("role") == "img"]
    entropy = two.charts[titles.index("Entropy")]
    assert [trace["name"] for trace in entropy["data"]] == ["watched", "tiny"]  # a run without keeps its color


def test_a_run_without_an_analysis_says_how_to_make_one(trained, tmp_path):
    assert "linnet analyze DIR" in page(trained, out=tmp_path / "r.html").text


def test_maps_of_many_heads_are_pooled_further(watched, monkeypatch, tmp_path):
    from linnet.report import attention as sections

    monkeypatch.setattr(sections, "BUDGET", 4 * 10 * 10)
    (maps,) = [chart for chart in page(watched, out=tmp_path / "r.html").charts if "layers" in chart]
    sizes = {head["size"] for layer in maps["layers"] for head in layer["maps"]}
    assert sizes == {10}
    rows = unpack_heatmap(maps["layers"][0]["maps"][0]).sum(axis=1)
    assert rows == pytest.approx([1] * 10, rel=0.01)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"format": "other"}, "is not an analysis"),
        ({"layers": [{"name": "l", "values": {}, "maps": [{"size": 3, "high": 0.0, "data": "AAAA"}]}]}, "damaged"),
        ({"layers": [{"name": "layer 0", "values": {}, "maps": ["<b>"]}]}, "damaged"),
        ({"layers": 7}, "is not an analysis"),
    ],
)
def test_a_damaged_analysis_is_named(watched, tmp_path, change, line):
    folder = Path(shutil.copytree(watched, tmp_path / "run"))
    found = json.loads((folder / "analysis/analysis.json").read_text())
    write_json_file(folder / "analysis/analysis.json", {**found, **change})
    with pytest.raises(LinnetError, match=line) as error:
        write_report_page([folder])
    assert "\n" not in str(error.value)


def test_malformed_parts_of_an_analysis_are_left_out(watched, tmp_path):
    folder = Path(shutil.copytree(watched, tmp_path / "run"))
    odd = {"entropy": {"relative": HOSTILE, "bits": [None, "1", [2]]}, "local_score": {"curve": [[1], [2, 3]]}, "x": 7}
    odd["lognormal_fit"] = {"quantiles": [[0.0] * 99], "mean": [HOSTILE], "variance": None}
    layer = {"name": HOSTILE, "values": odd, "notes": [HOSTILE], "refused": {"entropy": 7}, "maps": None}
    more = {"length": 3, "layers": [layer], "tokens": [1, HOSTILE], "gradients": {"deviation": ["x", None]}}
    found = json.loads((folder / "analysis/analysis.json").read_text())
    write_json_file(folder / "analysis/analysis.json", {**found, **more})
    with (folder / "metrics.jsonl").open("a") as log:
        for relative in (7, [7, HOSTILE, [True]]):
            values = {"entropy": {"relative": relative}, "temperature": 7}
            log.write(json.dumps({"step": 11, "split": "instruments", "layers": [7], "values": values}) + "\n")
    assert_safe(page(folder))


def test_the_report_of_a_language_model_shows_text_that_it_writes(copy):
    folder = copy("mine")
    (folder / "sample.json").unlink()
    before = {path.name for path in folder.iterdir()}
    assert linnet(["report", str(folder), "--json"]) == 0
    found = Page(folder / "report.html")
    assert "temperature 0.7" in found.text and "The " in found.text
    assert {path.name for path in folder.iterdir()} == before | {"report.html"}
    shutil.rmtree(folder / "checkpoints")  # a run before its first checkpoint has none
    assert linnet(["report", str(folder), "--json"]) == 0
    assert "temperature 0.7" not in Page(folder / "report.html").text
