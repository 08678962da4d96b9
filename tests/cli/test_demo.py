"""`linnet demo`, at a size that fits a test."""

import json
import signal

import pytest

from linnet.cli import demo
from linnet.storage import checkpoint_steps

TINY = demo.Size(
    sets=(
        *("data.context=32", "data.vocab_size=300", "train.steps=4", "train.warmup=1", "train.eval_batches=1"),
        *('model.layers=["diag","norm"]', "model.width=16", "model.heads=2", "model.ffn_width=24", "train.threads=1"),
    ),
    lengths=(16, 32),
    rounds=1,
    new_tokens=5,
)


def test_the_demo_trains_measures_writes_and_reports(run, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "QUICK", TINY)
    monkeypatch.chdir(tmp_path)
    code, out, err = run("demo", "--quick")
    assert code == 0, err
    (folder,) = (tmp_path / "runs").iterdir()
    assert out.splitlines()[-1] == f"runs/{folder.name}/report.html"
    assert "validation perplexity" in out
    assert "x slower)" in out or "x faster)" in out
    sample = json.loads((folder / "sample.json").read_text())
    assert sample["text"].startswith(demo.PROMPT)
    assert sample["text"] in out
    page = (folder / "report.html").read_text()
    assert "<h2>Cost</h2>" in page
    assert "<h2>Text</h2>" in page
    assert [line for line in err.splitlines() if line.startswith("[")] == [
        "[1/4] training a TransNormer T2 on the source code of Python's standard library",
        "[2/4] measuring its layers against softmax",
        "[3/4] generating text after 'def '",
        "[4/4] writing the report",
    ]


@pytest.mark.slow
def test_the_demo_as_it_is_answers_in_json(run, tmp_path):
    code, out, err = run("demo", "--quick", "--out", tmp_path / "run", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["report"] == str(tmp_path / "run" / "report.html")
    assert run("resume", tmp_path / "run")[0] == 0  # it is a run like any other
    assert {row["attention"] for row in found["cost"]["rows"]} == {"softmax", "diag", "norm"}
    assert found["valid"]["perplexity"] > 0


def test_a_signal_ends_the_demo_and_keeps_the_run(run, tmp_path, monkeypatch):
    from linnet.train.log import RunLog

    def interrupted(self, *args):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(demo, "QUICK", TINY)
    monkeypatch.setattr(RunLog, "step", interrupted)
    code, out, _ = run("demo", "--quick", "--out", tmp_path / "run")
    assert code == 130
    assert out == f"stopped at step 1 of 4 and saved: linnet resume {tmp_path / 'run'}\n"
    assert checkpoint_steps(tmp_path / "run" / "checkpoints") == [1]


def test_a_used_folder_is_refused_before_anything_else(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = run("demo", "--out", tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is not empty" in err
