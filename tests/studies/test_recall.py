"""Recall: its rows, its table, its figure, and its errors."""

import copy
import re

import pytest
from PIL import Image

import linnet
from linnet.errors import LinnetError
from linnet.figures.figure import figure_to_plotly
from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.storage import write_json_file
from linnet.studies.base import Request
from linnet.studies.recall import recall_by_mechanism
from linnet.studies.records import records_sha256
from linnet.studies.trained import Scale

STUDIED = STUDY["recall"]()
NAMES = ["softmax", "norm", "lln", "elu", "diag", "lln_diag", "performer", "cosformer"]
NAMES += ["long_short", "flash", "flash_quad"]


def record(name: str, seed: int, accuracies: list[float]) -> dict:
    """A record as `linnet reproduce recall` writes it, with numbers that are easy to check."""
    return {
        "study": "recall",
        "row": name,
        "seed": seed,
        "command": "linnet reproduce recall --scale cpu",
        "scale": "cpu",
        "config": {
            "task": "recall",
            "seed": seed,
            "data": {"pairs": [4, 8], "context": 24, "vocab_size": 41},
            "model": {"layers": ["diag", name]},
            "train": {"steps": 10, "batch": 2, "lr": 0.003},
        },
        "parameters": 1234,
        "tokens": 480,
        "seconds": 5.4,
        "environment": {"threads": 1, "linnet": "0.1.0", "torch": "2.13.0", "samples": {"test": 1000}},
        "curve": [],
        "test": {"accuracy": 0.5, "accuracy_4_pairs": accuracies[0], "accuracy_8_pairs": accuracies[1]},
    }


RECORDS = [record("elu", 0, [0.5, 0.25]), record("softmax", 1, [0.98, 0.9]), record("softmax", 0, [1.0, 0.8])]


def test_the_table_has_the_mean_and_the_range():
    lines = STUDIED.to_markdown(RECORDS).splitlines()
    assert lines[0] == "| mechanism | parameters | seeds | 4 pairs | 8 pairs | seconds |"
    assert lines[2] == "| softmax | 1,234 | 2 | 99.0 (98.0 to 100.0) | 85.0 (80.0 to 90.0) | 5 |"
    assert lines[3] == "| elu | 1,234 | 1 | 50.0 | 25.0 | 5 |"
    assert "4 or 8 pairs each; guessing gives 5.0." in lines[5]
    assert "`linnet reproduce recall --scale cpu`" in lines[5]
    assert lines[7].startswith("Planned and not run, about 0.0 core-hours more: `cosformer-seed0`, ")
    assert "`elu-seed1`" in lines[7]
    assert "`elu-seed0`" not in lines[7]


def test_the_best_comes_first():
    assert list(recall_by_mechanism(RECORDS)) == ["softmax", "elu"]
    assert [run["seed"] for run in recall_by_mechanism(RECORDS)["softmax"]] == [0, 1]


def test_the_figure_is_accuracy_against_pairs():
    (figure,) = STUDIED.figures(RECORDS, "note")
    softmax, elu = figure.series
    assert (list(softmax.x), softmax.y, softmax.low, softmax.high) == ([4, 8], [99, 85], [98, 80], [100, 90])
    assert (elu.low, elu.high) == (None, None)


def test_eleven_mechanisms_have_distinct_colors():
    (figure,) = STUDIED.figures([record(name, 0, [0.9, 0.1]) for name in NAMES], "")
    traces = [trace for trace in figure_to_plotly(figure)["data"] if "marker" in trace]  # the others are levels
    looks = {(trace["line"]["color"], trace["line"]["dash"], trace["marker"]["symbol"]) for trace in traces}
    assert len(traces) == len(looks) == len(NAMES)
    assert len({(color, symbol) for color, _, symbol in looks}) == len(NAMES)  # without the dash, too


@pytest.mark.parametrize(("section", "key"), [("data", "context"), ("train", "steps")])
def test_runs_of_other_settings_are_refused(section, key):
    other = copy.deepcopy(RECORDS)
    other[1]["config"][section][key] += 1
    with pytest.raises(LinnetError, match="different settings"):
        STUDIED.to_markdown(other)


def test_a_page_and_a_picture_are_made_of_the_records(tmp_path):
    folder = tmp_path / "recall-cpu"
    folder.mkdir()
    records = [record(name, seed, [1 - i / 20, 0.9 - i / 15]) for i, name in enumerate(NAMES) for seed in range(2)]
    for i, one in enumerate(records):
        write_json_file(folder / f"{i:02}.json", one)
    page, picture = STUDIED.render(folder, "cpu")
    text = page.read_text()
    assert STUDIED.to_markdown(records) in text
    assert re.search(r"!\[accuracy against the number of pairs\]\(recall-cpu\.png\)", text)
    assert Image.open(picture).text["linnet-results"] == records_sha256(records)


def test_recall_is_of_every_causal_mechanism() -> None:
    found = [(run.row.name, run.seed, run.config.model["layers"]) for run in STUDIED.study_runs("cpu")]
    causal = [name for name in linnet.list_attention() if linnet.describe_attention(name)["causal"]]
    assert found == [(name, seed, ["diag", name]) for seed in range(3) for name in causal]
    assert len({study_run.name for study_run in STUDIED.study_runs("cpu")}) == len(found)
    config = STUDIED.study_runs("cpu")[0].config
    for options in config.model["options"].values():  # nothing local holds a sample, and nothing is longer than one
        assert all(size <= config.data.context // 4 for name, size in options.items() if name != "max_length")
    assert config.model["options"]["cosformer"] == {"max_length": config.data.context}


def test_a_study_of_recall_trains_and_renders(monkeypatch, tmp_path):
    sets = ("train.steps=2", "train.warmup=1", "data.pairs=[1, 3]", "data.context=9", "train.eval_batches=2")
    monkeypatch.setattr(type(STUDIED), "scales", {"cpu": Scale("recall", sets=sets)})
    monkeypatch.setattr(type(STUDIED), "rows", [row for row in STUDIED.rows if row.name in ("softmax", "norm")])
    report = STUDIED.reproduce(Request(out=tmp_path / "runs", results=tmp_path / "results"), Screen(quiet=True))
    records = STUDIED.read(tmp_path / "results")
    assert sorted((r["row"], r["seed"]) for r in records) == [(n, s) for n in ("norm", "softmax") for s in range(3)]
    assert all(0 <= r["test"][f"accuracy_{P}_pairs"] <= 1 for r in records for P in (1, 3))
    assert report.text.endswith("6 of 6 runs are done")
    assert STUDIED.to_markdown(records) in (tmp_path / "results.md").read_text()
    assert Image.open(tmp_path / "results.png").text["linnet-results"] == records_sha256(records)
