"""Signals and kills: a run stops cleanly, and a killed run reaches the same bits after resuming."""

import multiprocessing
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from linnet.cli.app import run_app as linnet
from linnet.config import dump_config
from linnet.storage import checkpoint_steps, read_checkpoint, read_run_metrics


@pytest.fixture
def recipe(config, tmp_path):
    """The path of a recipe: `recipe(steps=9)`."""

    def write(task: str = "causal_lm", **train: object) -> str:
        path = tmp_path / "recipe.toml"
        path.write_text(dump_config(config(task, **train)))
        return str(path)

    return write


def wait_for(condition, process: "subprocess.Popen[str]") -> None:
    for _ in range(3000):
        if condition() or process.poll() is not None:
            return
        time.sleep(0.01)
    pytest.fail("nothing happened in 30 s")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_step_saves_and_exits_with_its_code(number, recipe, tmp_path):
    path, folder = recipe(steps=100_000, save_every=0, eval_every=0, log_every=1), tmp_path / "run"
    command = [sys.executable, "-m", "linnet", "train", path, "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(read_run_metrics(folder / "metrics.jsonl")) > 3, process)
    process.send_signal(number)
    start = time.perf_counter()
    out, err = process.communicate(timeout=30)
    assert time.perf_counter() - start < 5
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    (step,) = checkpoint_steps(folder / "checkpoints")
    assert f"stopped at step {step} of 100000 and saved: linnet resume {folder}" in out
    assert read_run_metrics(folder / "metrics.jsonl")[-1]["step"] == step
    assert read_checkpoint(folder / f"checkpoints/step-{step}").state["position"]["step"] == step


def test_a_stop_does_not_wait_for_the_rest_of_an_update(recipe, tmp_path, last):
    """The second update would take half a minute; it is dropped, and the resumed run has the same bits."""
    program = """
import sys, time
from linnet.cli.app import run_app as run
from linnet.train.loop import Trainer
accumulate = Trainer._accumulate
def slow(trainer, number, step):
    if step == 2:
        print("in the update", flush=True)
        time.sleep(0.5)
    return accumulate(trainer, number, step)
Trainer._accumulate = slow
sys.exit(run(sys.argv[1:]))
"""
    path, folder = recipe(steps=3, accumulate=60, eval_every=0, save_every=0, log_every=1), tmp_path / "run"
    command = [sys.executable, "-c", program, "train", path, "--out", str(folder), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "in the update\n"
    process.send_signal(signal.SIGTERM)
    start = time.perf_counter()
    assert process.wait(timeout=30) == 143
    assert time.perf_counter() - start < 5
    process.stdout.close()
    assert checkpoint_steps(folder / "checkpoints") == [1]
    assert linnet(["resume", str(folder), "--json"]) == 0
    assert linnet(["train", path, "--out", str(tmp_path / "whole"), "--json"]) == 0
    assert last(folder) == last(tmp_path / "whole")


def test_a_second_signal_exits_at_once(recipe, tmp_path):
    """The first step never ends, so only the second signal can end the process."""
    program = """
import sys, time
from linnet.cli.app import run_app as run
from linnet.train.loop import Trainer
def endless(trainer):
    print("in the step", flush=True)
    while True:
        time.sleep(0.01)
Trainer._update = endless
sys.exit(run(sys.argv[1:]))
"""
    command = [sys.executable, "-c", program, "train", recipe(), "--out", str(tmp_path / "run"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "in the step\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=5) == 143
    process.stdout.close()
    assert checkpoint_steps(tmp_path / "run/checkpoints") == []


def test_a_shell_and_its_kernel_may_both_hang_up(recipe, tmp_path):
    """The second SIGHUP arrives during the step and does not end the process before it has saved."""
    program = """
import os, signal, sys
from linnet.cli.app import run_app as run
from linnet.train.loop import Trainer
update = Trainer._update
def hung_up(trainer):
    done = update(trainer)
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)
    return done
Trainer._update = hung_up
sys.exit(run(sys.argv[1:]))
"""
    command = [sys.executable, "-c", program, "train", recipe(), "--out", str(tmp_path / "run"), "--json"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=60).returncode == 129
    assert checkpoint_steps(tmp_path / "run/checkpoints") == [1]
    nohup = ["nohup", *command]  # under which a hang-up is none
    nohup[nohup.index(str(tmp_path / "run"))] = str(tmp_path / "other")
    assert subprocess.run(nohup, capture_output=True, check=False, timeout=60).returncode == 0


def test_kills_at_random_times_end_in_the_same_bits(recipe, tmp_path, last):
    """SIGKILL at any moment of start, step or save; a run that finishes anyway is started again."""
    path = recipe("masked_lm", steps=30, save_every=2, eval_every=8)
    context = multiprocessing.get_context("forkserver")  # children of a process that has imported torch once
    context.set_forkserver_preload(["linnet.train.run", "linnet.cli.app", "torch._dynamo"])

    def child(*arguments: str) -> multiprocessing.Process:
        process = context.Process(target=linnet, args=([*arguments, "--json"],))
        process.start()
        return process

    child("list", "tasks").join()  # the server starts
    start = time.perf_counter()
    child("train", path, "--out", str(tmp_path / "whole")).join()
    usual = time.perf_counter() - start
    folder, moment, kills = tmp_path / "killed", random.Random(0), 0
    while kills < 8:
        begun = (folder / "config.toml").exists()
        process = child("resume", str(folder)) if begun else child("train", path, "--out", str(folder))
        process.join(usual * moment.uniform(0.1, 0.7))
        if process.exitcode is None:
            process.kill()
            kills += 1
        else:
            assert last(folder) == last(tmp_path / "whole")
            shutil.rmtree(folder)
        process.join()
    begun = (folder / "config.toml").exists()
    child("resume", str(folder)).join() if begun else child("train", path, "--out", str(folder)).join()
    assert last(folder) == last(tmp_path / "whole")
    assert not list(folder.rglob(".linnet-*"))
