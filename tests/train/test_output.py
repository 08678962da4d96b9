"""Output that fails: a run goes on to the same bits and exits as if it had been read."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.config import dump_config
from linnet.screen import Screen
from linnet.storage import read_metrics
from linnet.train.run import start_run

STEPS = 30


@pytest.fixture
def train(config, tmp_path) -> Callable[[str], "subprocess.Popen[bytes]"]:
    """`train("2>&-")`: a run that logs every step, redirected by the shell, whose exit code is that of the run."""
    settings = config(steps=STEPS, log_every=1, eval_every=10, save_every=10)
    (tmp_path / "r.toml").write_text(dump_config(settings))
    start_run(settings, tmp_path / "whole", Screen(quiet=True))

    def begin(redirection: str, **options: object) -> "subprocess.Popen[bytes]":
        command = f"{sys.executable} -m linnet train {tmp_path}/r.toml --out {tmp_path}/run {redirection}"
        return subprocess.Popen(["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], **options)

    return begin


def same(folder: Path, last) -> bool:
    """Whether a run has the bits of the one whose output was whole."""
    return last(folder / "run") == last(folder / "whole")


# A reader that goes away after the first line, a full device, streams that are closed from the beginning.
@pytest.mark.parametrize("redirection", ["2>&1 | head -n 1", "> /dev/full 2>&1", "<&- >&- 2>&-"])
def test_output_that_fails_does_not_stop_a_run(train, tmp_path, last, redirection):
    process = train(redirection, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert b"Traceback" not in out + err
    assert b"Exception ignored" not in out + err
    assert same(tmp_path, last)


def test_a_terminal_that_is_closed_does_not_stop_the_bar(train, tmp_path, last):
    screen, terminal = pty.openpty()
    process = train("", stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    shown = b""
    while b"training" not in shown:  # the bar is there
        shown += os.read(screen, 1000)
    os.close(screen)
    assert read_metrics(tmp_path / "run/metrics.jsonl")[-1:] != read_metrics(tmp_path / "whole/metrics.jsonl")[-1:]
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out.startswith(b"finished: 30 steps")) == (0, True)
    assert same(tmp_path, last)


def test_an_error_keeps_its_exit_code(train, tmp_path):
    process = train("--set train.steps=0 2> /dev/full")
    assert process.wait(timeout=60) == 2
    assert not (tmp_path / "run").exists()
