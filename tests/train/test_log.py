"""The output of a run: plain lines, nothing when quiet, a bar on a terminal, TensorBoard on request."""

import io
import sys
import time

import pytest
from rich.console import Console
from rich.progress import Progress

from linnet.errors import InputError
from linnet.screen import Screen
from linnet.storage import read_run_metrics
from linnet.train.log import describe_log_record
from linnet.train.loop import Trainer
from linnet.train.run import start_run


def test_plain_lines(config, tmp_path, capfd):
    start_run(config(), tmp_path / "run", Screen())
    out, err = capfd.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("step")]
    assert [line.split("  ")[0] for line in lines] == ["step 3/6", "step 4/6", "step 6/6", "step 6/6"]
    assert all(word in lines[1] for word in ("loss", "lr", "tokens/s", "0:00:0"))
    assert "valid: loss" in lines[0]
    assert "context 24" in lines[0]


def test_quiet_is_quiet_but_for_warnings(config, tmp_path, capfd):
    screen = Screen(quiet=True)
    start_run(config(), tmp_path / "run", screen)
    screen.warn("look")
    assert capfd.readouterr() == ("", "linnet: warning: look\n")


def test_the_time_of_a_core_does_not_include_pauses(config, tmp_path, monkeypatch):
    update = Trainer._update
    monkeypatch.setattr(Trainer, "_update", lambda trainer: (time.sleep(1), update(trainer))[1])
    start_run(config(steps=4, log_every=1), tmp_path / "run", Screen(quiet=True))
    records = read_run_metrics(tmp_path / "run/timings.jsonl")
    passed, worked = (sum(record[name] for record in records) for name in ("seconds", "core_seconds"))
    assert passed > 4
    assert 0 < worked < passed - 2


def test_a_bar_on_a_terminal(config, tmp_path, monkeypatch):
    written = io.StringIO()
    screen = Screen()
    screen.bar = Progress(*Screen.columns(), console=Console(file=written, force_terminal=True, width=100))
    start_run(config(log_every=1), tmp_path / "run", screen)
    text = written.getvalue()
    assert "training" in text
    assert "6/6" in text
    assert "tokens/s" in text
    assert "valid: loss" in text
    assert not screen.bar.live.is_started


def test_tensorboard(config, tmp_path):
    pytest.importorskip("tensorboard", reason="the extra `track` is not installed")
    start_run(config(tensorboard=True), tmp_path / "run", Screen(quiet=True))
    (events,) = (tmp_path / "run/tensorboard").iterdir()
    assert b"valid/perplexity" in events.read_bytes()


def test_without_tensorboard_it_is_one_line_and_nothing_is_written(config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'linnet-attention\[track\]'"):
        start_run(config(tensorboard=True), tmp_path / "run", Screen(quiet=True))
    assert not (tmp_path / "run").exists()


def test_an_evaluation_in_one_line():
    metrics = {"split": "test", "loss": 1.0, "word_perplexity": 2.71828, "tokens": 12_345, "context": 64}
    assert describe_log_record(metrics) == "test: loss 1.0000  word perplexity 2.7183  (12,345 tokens, context 64)"
