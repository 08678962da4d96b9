"""Runs from outside: signals, kills, locks, damaged checkpoints, changed data, full disks."""

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from linnet import storage
from linnet.cli.app import run as linnet
from linnet.config import dump_config, load_recipe
from linnet.errors import InputError, LinnetError
from linnet.storage import RunLock, read_checkpoint, read_metrics, steps
from linnet.train.log import Screen
from linnet.train.run import dry_run, evaluate_run, resume_run, start_run

QUIET = Screen(quiet=True)


class Listening(Screen):
    """A quiet screen that remembers its warnings."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def last(folder: Path) -> dict[str, bytes]:
    """The bytes of the newest checkpoint, and of the metrics."""
    path = folder / f"checkpoints/step-{steps(folder / 'checkpoints')[-1]}"
    return {file.name: file.read_bytes() for file in [*sorted(path.iterdir()), folder / "metrics.jsonl"]}


@pytest.fixture
def recipe(config, tmp_path):
    """The path of a recipe: `recipe(steps=9)`."""

    def write(task: str = "causal_lm", **train: object) -> str:
        path = tmp_path / "recipe.toml"
        path.write_text(dump_config(config(task, **train)))
        return str(path)

    return write


def test_the_files_of_a_run(config, tmp_path):
    outcome = start_run(config(), tmp_path / "run", QUIET)
    found = {path.name for path in (tmp_path / "run").iterdir()}
    files = {"config.toml", "environment.json", "tokenizer.json", "metrics.jsonl", "timings.jsonl", "checkpoints"}
    assert found == {*files, ".lock"}
    assert (outcome.step, outcome.tokens, outcome.signal) == (6, 6 * 2 * 2 * 24, 0)
    assert json.loads((tmp_path / "run/environment.json").read_text())["torch"] == torch.__version__
    assert all("seconds" not in record for record in read_metrics(tmp_path / "run/metrics.jsonl"))
    assert [record["step"] for record in read_metrics(tmp_path / "run/timings.jsonl")] == [3, 4, 6, 6]


def test_the_configuration_of_a_run_gives_the_run_again(config, tmp_path):
    start_run(config(steps=3), tmp_path / "a", QUIET)
    again = load_recipe(tmp_path / "a/config.toml")
    start_run(again, tmp_path / "b", QUIET)
    assert last(tmp_path / "a") == last(tmp_path / "b")
    assert (tmp_path / "a/config.toml").read_bytes() == (tmp_path / "b/config.toml").read_bytes()


def test_a_relative_path_leads_there_from_anywhere(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(config().data.path, "my.txt")
    data = config().data.model_copy(update={"path": "my.txt"})
    start_run(config(steps=2, save_every=1).model_copy(update={"data": data}), "run", QUIET)
    monkeypatch.chdir("/")
    assert resume_run(tmp_path / "run", QUIET).step == 2


def test_a_dry_run_writes_nothing(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = config().data.model_copy(update={"cache": str(tmp_path / "cache")})
    plan = dry_run(config().model_copy(update={"data": data}), QUIET)
    assert list(tmp_path.iterdir()) == []
    assert plan["tokens"] == 6 * 2 * 2 * 24
    assert plan["config"]["model"]["vocab_size"] == 261
    model = start_run(config(steps=2), tmp_path / "run", QUIET)
    assert plan["parameters"] == model.parameters


def test_a_finished_run_stays_as_it_is(config, tmp_path):
    start_run(config(), tmp_path / "run", QUIET)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock"]
    before = {path: path.read_bytes() for path in files}
    assert resume_run(tmp_path / "run", QUIET).step == 6
    assert {path: path.read_bytes() for path in before} == before


def test_a_folder_with_something_in_it_is_refused(config, tmp_path):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    with pytest.raises(InputError, match=r"not empty: `linnet resume"):
        start_run(config(), tmp_path / "run", QUIET)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a").touch()
    with pytest.raises(InputError, match="not empty: name another"):
        start_run(config(), tmp_path / "other", QUIET)
    with pytest.raises(InputError, match="is a file"):
        start_run(config(), tmp_path / "other/a", QUIET)
    with pytest.raises(LinnetError, match="cannot write"):
        start_run(config(), tmp_path / "other/a/b", QUIET)


@pytest.mark.parametrize("use", [resume_run, lambda folder, screen: evaluate_run(folder, "test", screen)])
def test_a_folder_that_is_no_run_is_refused(use, tmp_path):
    with pytest.raises(InputError, match="is not a run"):
        use(tmp_path, QUIET)
    with pytest.raises(InputError, match="does not exist"):
        use(tmp_path / "nothing", QUIET)


def test_a_second_process_is_refused(config, tmp_path):
    start_run(config(), tmp_path / "run", QUIET)
    program = "import sys, time\nfrom linnet.storage import RunLock\n"
    program += f"with RunLock({str(tmp_path / 'run')!r}):\n    print(flush=True)\n    time.sleep(60)\n"
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    owner.stdout.read(1)
    with pytest.raises(LinnetError, match=f"process {owner.pid} on .* is using it"):
        resume_run(tmp_path / "run", QUIET)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert resume_run(tmp_path / "run", QUIET).step == 6  # a dead owner holds nothing


def test_a_damaged_checkpoint_is_named_and_passed_over(config, tmp_path):
    settings = config(steps=6, save_every=2, eval_every=0)
    start_run(settings, tmp_path / "run", QUIET)
    whole = last(tmp_path / "run")
    file = tmp_path / "run/checkpoints/step-6/model.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    screen = Listening()
    assert resume_run(tmp_path / "run", screen).step == 6
    assert len(screen.warnings) == 1
    assert "step-6/model.safetensors" in screen.warnings[0]
    assert last(tmp_path / "run") == whole


def test_without_a_whole_checkpoint_nothing_is_overwritten(config, tmp_path):
    start_run(config(steps=2, save_every=2), tmp_path / "run", QUIET)
    (tmp_path / "run/checkpoints/step-2/state.json").unlink()
    with pytest.raises(LinnetError, match="no checkpoint is whole"):
        resume_run(tmp_path / "run", Listening())
    assert (tmp_path / "run/checkpoints/step-2/model.safetensors").exists()


def test_a_checkpoint_of_another_model_is_refused(config, tmp_path):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    text = (tmp_path / "run/config.toml").read_text()
    (tmp_path / "run/config.toml").write_text(text.replace("ffn_width = 24", "ffn_width = 25"))
    metrics = (tmp_path / "run/metrics.jsonl").read_bytes()
    for use in (resume_run, lambda folder, screen: evaluate_run(folder, "test", screen)):
        with pytest.raises(InputError, match=r"step-2 does not fit this model: the shape of blocks\.0\.ffn"):
            use(tmp_path / "run", QUIET)
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == metrics


def test_changed_data_are_refused(config, tmp_path):
    text = tmp_path / "my.txt"
    shutil.copy(config().data.path, text)
    data = config().data.model_copy(update={"path": str(text)})
    start_run(config().model_copy(update={"data": data}), tmp_path / "run", QUIET)
    text.write_text("x" + text.read_text())
    with pytest.raises(LinnetError, match="the data of this run have changed"):
        resume_run(tmp_path / "run", QUIET)


def test_other_versions_and_threads_are_told(config, tmp_path, monkeypatch):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    monkeypatch.setattr("linnet.train.run.versions", lambda: {"linnet": "0", "torch": "9.9", "machine": "m"})
    screen = Listening()
    resume_run(tmp_path / "run", screen)
    assert len(screen.warnings) == 1
    assert "9.9 now" in screen.warnings[0]


def test_a_longer_run_goes_on(config, tmp_path):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    text = (tmp_path / "run/config.toml").read_text()
    (tmp_path / "run/config.toml").write_text(text.replace("steps = 2", "steps = 4"))
    assert resume_run(tmp_path / "run", QUIET).step == 4


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(config, tmp_path):
    start_run(config(), tmp_path / "run", QUIET)
    whole = last(tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints")
    for name in ("environment.json", "tokenizer.json", "metrics.jsonl"):
        (tmp_path / "run" / name).unlink()
    assert resume_run(tmp_path / "run", QUIET).step == 6
    assert last(tmp_path / "run") == whole
    assert (tmp_path / "run/tokenizer.json").exists()


def test_a_full_disk_is_one_line_and_the_earlier_checkpoint_stays(config, tmp_path, monkeypatch, capfd):
    settings = config(steps=6, save_every=2, eval_every=0)
    before = storage._write_all

    def full(descriptor: int, data: bytes) -> None:
        if "step-4" in os.readlink(f"/proc/self/fd/{descriptor}"):
            before(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        before(descriptor, data)

    (tmp_path / "r.toml").write_text(dump_config(settings))
    monkeypatch.setattr(storage, "_write_all", full)
    assert linnet(["train", str(tmp_path / "r.toml"), "--out", str(tmp_path / "run"), "--json"]) == 1
    out, err = capfd.readouterr()
    assert (out, err) == ("", f"linnet: cannot write {tmp_path}/run/checkpoints/step-4: No space left on device\n")
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-2"]
    read_checkpoint(tmp_path / "run/checkpoints/step-2")
    monkeypatch.undo()
    assert resume_run(tmp_path / "run", QUIET).step == 6


def wait_for(condition, process: "subprocess.Popen[str]") -> None:
    for _ in range(3000):
        if condition() or process.poll() is not None:
            return
        time.sleep(0.01)
    pytest.fail("nothing happened in 30 s")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_step_saves_and_exits_with_its_code(number, recipe, tmp_path):
    path, folder = recipe(steps=100_000, save_every=0, eval_every=0, log_every=1), tmp_path / "run"
    command = [sys.executable, "-m", "linnet", "train", path, "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(read_metrics(folder / "metrics.jsonl")) > 3, process)
    process.send_signal(number)
    start = time.perf_counter()
    out, err = process.communicate(timeout=30)
    assert time.perf_counter() - start < 5
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    (step,) = steps(folder / "checkpoints")
    assert f"stopped at step {step} of 100000 and saved: linnet resume {folder}" in out
    assert read_metrics(folder / "metrics.jsonl")[-1]["step"] == step
    assert read_checkpoint(folder / f"checkpoints/step-{step}").state["position"]["step"] == step


def test_a_second_signal_exits_at_once(recipe, tmp_path):
    """The first step never ends, so only the second signal can end the process."""
    program = """
import sys, time
from linnet.cli.app import run
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
    assert steps(tmp_path / "run/checkpoints") == []


def test_kills_at_random_times_end_in_the_same_bits(recipe, tmp_path):
    """SIGKILL at any moment of start, step or save; a run that finishes all the same is begun anew."""
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


def test_a_lock_is_held_while_training(config, tmp_path, monkeypatch):
    held = []

    def look(self: Screen, text: str) -> None:
        if text.startswith("step"):
            with pytest.raises(LinnetError, match=f"process {os.getpid()}"), RunLock(tmp_path / "run"):
                pass
            held.append(text)

    monkeypatch.setattr(Screen, "say", look)
    start_run(config(), tmp_path / "run", Screen())
    assert held
