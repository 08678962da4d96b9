"""The answers part of a report: its file, damage to it, and the page."""

import json
from pathlib import Path

import numpy as np
import pytest

from linnet.cli.app import run_app
from linnet.errors import LinnetError
from linnet.report.answers import WORST, answer_parts, describe_answers, read_answers
from linnet.report.page import write_report_page
from tests.tasks.test_sentences import ENCODER

HOSTILE = "<script>alert(1)</script> & </td>"
JUDGED = [
    {"row": "a", "texts": ["good"], "truth": "yes", "answer": "yes", "error": 0.1},
    {"row": "b", "texts": [HOSTILE], "truth": "no", "answer": "yes", "error": 2.0},
    {"row": "c", "texts": ["bad"], "truth": "no", "answer": "no", "error": 0.2},
    {"row": "d", "texts": ["long " * 1000], "truth": "yes", "answer": "no", "error": 3.0},
]
METRICS = {"split": "valid", "confusion": [[1, 1], [1, 1]]}


def test_wrong_answers_are_listed_worst_first() -> None:
    found = describe_answers(JUDGED, ["no", "yes"], METRICS)
    assert [(text["row"], text["truth"], text["answer"], text["error"]) for text in found["worst"]] == [
        ("d", "yes", "no", 3.0),
        ("b", "no", "yes", 2.0),
    ]
    assert found["wrong"] == 2 and found["samples"] == 4
    assert len(found["worst"][0]["texts"][0]) == 2000


def test_scores_are_listed_by_their_distance() -> None:
    same = {"texts": ["x", "y"], "answer": "0.000"}
    many = [{"row": str(i), **same, "truth": str(i), "error": float(i)} for i in range(150)]
    found = describe_answers(many, [], {"split": "valid"})
    assert len(found["worst"]) == WORST
    assert found["worst"][0] == {"row": "149", **same, "truth": "149", "error": 149.0}
    assert found["wrong"] is None and found["confusion"] == []
    assert answer_parts([("run", found), ("none", None)])[0]["about"] == "150 texts of the valid split"


@pytest.mark.parametrize(
    "damage",
    [
        {"format": "other"},
        {"classes": "no"},
        {"confusion": [[1]]},
        {"confusion": [[1, 2], [3]]},
        {"confusion": [[10**30, 2], [float("inf"), 4]]},
        {"wrong": "2"},
        {"worst": [{"row": "a"}]},
        {"worst": [{"row": "a", "texts": [1], "truth": "x", "answer": "y", "error": 1.0}]},
        {"worst": [{"row": "a", "texts": [], "truth": "x", "answer": "y", "error": "1"}]},
        {"worst": [{"row": "a", "texts": [], "truth": "x", "answer": "y", "error": 10**400}]},
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, damage: dict[str, object]) -> None:
    found = describe_answers(JUDGED, ["no", "yes"], METRICS)
    (tmp_path / "answers.json").write_text(json.dumps({**found, **damage}))
    with pytest.raises(LinnetError, match=r"answers.json is not a file of answers") as error:
        read_answers(tmp_path / "answers.json")
    assert "\n" not in str(error.value)


def test_a_run_shows_its_errors_in_the_report(tmp_path: Path) -> None:
    """Train, analyze and report on texts that are markup: they appear as text."""
    text = Path(__file__).parents[2] / "CONTRIBUTING.md"
    (tmp_path / "mlm.toml").write_text(ENCODER.format(text=text))
    assert run_app(["train", str(tmp_path / "mlm.toml"), "--out", str(tmp_path / "encoder"), "--json"]) == 0
    words = ["old", "tree", HOSTILE, "elm"]
    rows = [f"{words[i % 4]} number {i}\t{'vowel' if i % 4 in (0, 3) else 'consonant'}" for i in range(80)]
    (tmp_path / "my.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    sets = ["data.path=" + str(tmp_path / "my.tsv"), "train.steps=2", "train.warmup=0", "train.batch=8"]
    options = [part for text in (*sets, "train.eval_every=2") for part in ("--set", text)]
    run = str(tmp_path / "run")
    assert run_app(["finetune", str(tmp_path / "encoder"), "classify", *options, "--out", run, "--json"]) == 0
    assert run_app(["analyze", run, "--instrument", "entropy", "--instrument", "attention_map", "--json"]) == 0
    found = read_answers(tmp_path / "run/analysis/answers.json")
    assert found is not None and found["classes"] == ["consonant", "vowel"]
    assert np.sum(found["confusion"]) == found["samples"]
    assert found["wrong"] == found["samples"] - np.trace(found["confusion"]) == len(found["worst"]) > 0
    errors = [text["error"] for text in found["worst"]]
    assert errors == sorted(errors, reverse=True)
    page = write_report_page([run]).read_text()
    assert "Answers</button>" in page and "Worst errors" in page
    assert "<td>consonant</td>" in page or "<td>vowel</td>" in page
    assert HOSTILE not in page
