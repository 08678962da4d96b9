"""Output that fails: a run continues to the same bits and exits as if its output had been read."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.cli.app import run_app as linnet
from linnet.screen import Screen
from linnet.storage import read_run_metrics

SIZES = "model.width=16 model.ffn_width=24 data.context=12 data.vocab_size=9 data.pairs=[1,2]"
EVERY = "train.eval_every=10 train.eval_batches=1 train.save_every=10 train.log_every=1 train.warmup=2"
SETS = [word for pair in f"{SIZES} {EVERY} train.steps=30 train.batch=2".split() for word in ("--set", pair)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run whose output was not disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert linnet(["train", "recall", *SETS, "--out", str(folder), "--json"]) == 0
    return folder


@pytest.fixture
def train(tmp_path) -> Callable[..., "subprocess.Popen[bytes]"]:
    """`train("2>&-")`: the same run, redirected by a shell that exits with the code of the run."""

    def begin(redirection: str, **options: object) -> "subprocess.Popen[bytes]":
        command = f"{sys.executable} -m linnet train recall {' '.join(SETS)} --out {tmp_path}/run {redirection}"
        return subprocess.Popen(["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], **options)

    return begin


def content(folder: Path) -> dict[str, bytes]:
    files = ("metrics.jsonl", "checkpoints/step-30/model.safetensors", "checkpoints/step-30/state.json")
    return {file: (folder / file).read_bytes() for file in files}


# A reader that goes away after the first line, a full device, streams that are closed from the beginning.
@pytest.mark.parametrize("redirection", ["2>&1 | head -n 1", "> /dev/full 2>&1", "<&- >&- 2>&-"])
def test_output_that_fails_does_not_stop_a_run(train, whole, tmp_path, redirection):
    process = train(redirection, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert b"Traceback" not in out + err
    assert b"Exception ignored" not in out + err
    assert content(tmp_path / "run") == content(whole)


def test_a_terminal_that_is_closed_does_not_stop_the_bar(train, whole, tmp_path):
    screen, terminal = pty.openpty()
    process = train("", stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    shown = b""
    while b"training" not in shown:  # the bar is there
        shown += os.read(screen, 1000)
    os.close(screen)
    assert len(read_run_metrics(tmp_path / "run/metrics.jsonl")) < len(read_run_metrics(whole / "metrics.jsonl"))
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out.startswith(b"finished: 30 steps")) == (0, True)
    assert content(tmp_path / "run") == content(whole)


def test_long_work_without_a_bar_says_from_time_to_time_how_far_it_is(capfd, monkeypatch):
    show = Screen().work("reading")
    for done in range(4):
        monkeypatch.setattr("linnet.screen.PAUSE", 0.0 if done == 3 else 3600.0)
        show(done, 4)
    assert capfd.readouterr().err == "reading\nreading: 75%\n"


def test_an_error_keeps_its_exit_code(train, tmp_path):
    process = train("--set train.steps=0 2> /dev/full")
    assert process.wait(timeout=60) == 2
    assert not (tmp_path / "run").exists()
