"""Runs: the content of their folders, locks, damaged checkpoints, changed data, full disks."""

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from linnet.cli.app import run_app as linnet
from linnet.config import dump_config, load_recipe_config, parse_config_section
from linnet.errors import LinnetError
from linnet.models import presets
from linnet.models.backbone import Model
from linnet.models.config import ModelConfig
from linnet.screen import Screen
from linnet.storage import RunLock, checkpoint_steps, files, read_checkpoint, read_run_metrics
from linnet.tasks.text import TextTask
from linnet.train.run import evaluate_run, resume_run, start_run

QUIET = Screen(quiet=True)


class Listening(Screen):
    """A quiet screen that remembers its warnings."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def edit(folder: Path, before: str, after: str) -> None:
    """Change one line of a run's configuration."""
    text = (folder / "config.toml").read_text()
    assert text.count(f"{before}\n") == 1
    (folder / "config.toml").write_text(text.replace(f"{before}\n", f"{after}\n"))


def test_the_files_of_a_run(config, tmp_path):
    outcome = start_run(config(), tmp_path / "run", QUIET)
    found = {path.name for path in (tmp_path / "run").iterdir()}
    files = {"config.toml", "environment.json", "tokenizer.json", "metrics.jsonl", "timings.jsonl", "checkpoints"}
    assert found == {*files, ".lock"}
    assert (outcome.step, outcome.tokens, outcome.signal) == (6, 6 * 2 * 2 * 24, 0)
    assert json.loads((tmp_path / "run/environment.json").read_text())["torch"] == torch.__version__
    assert all("seconds" not in record for record in read_run_metrics(tmp_path / "run/metrics.jsonl"))
    assert [record["step"] for record in read_run_metrics(tmp_path / "run/timings.jsonl")] == [3, 4, 6, 6]


def test_a_run_keeps_the_checkpoints_that_it_is_told_to(config, tmp_path, last):
    start_run(config(), tmp_path / "a", QUIET)
    start_run(config(save_every=1, keep_last=1, keep_every=2), tmp_path / "b", QUIET)
    kept = checkpoint_steps(tmp_path / "b/checkpoints")
    assert {2, 4, 6} <= set(kept) and len(kept) <= 4  # and the best
    assert last(tmp_path / "a") == last(tmp_path / "b")


def test_the_configuration_of_a_run_gives_the_run_again(config, tmp_path, last):
    start_run(config(steps=3), tmp_path / "a", QUIET)
    again = load_recipe_config(tmp_path / "a/config.toml")
    start_run(again, tmp_path / "b", QUIET)
    assert last(tmp_path / "a") == last(tmp_path / "b")
    assert (tmp_path / "a/config.toml").read_bytes() == (tmp_path / "b/config.toml").read_bytes()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_is_parsed_built_and_prepared_once(config, tmp_path, monkeypatch, resumed):
    """Training and evaluating two splits at two checkpoints takes one parse, one meta model and one real model."""
    if resumed:
        start_run(config(steps=2), tmp_path / "run", QUIET)
        edit(tmp_path / "run", "steps = 2", "steps = 6")
    done: list[str] = []
    build, prepare, parse = Model.__init__, TextTask.__init__, parse_config_section

    def built(self, settings):
        build(self, settings)
        done.append("meta" if next(self.parameters()).is_meta else "real")

    def prepared(self, *arguments):
        done.append("data")
        prepare(self, *arguments)

    def parsed(cls, *arguments):
        done.extend(["parse"] if cls is ModelConfig else [])
        return parse(cls, *arguments)

    monkeypatch.setattr(Model, "__init__", built)
    monkeypatch.setattr(TextTask, "__init__", prepared)
    monkeypatch.setattr(presets, "parse_config_section", parsed)
    outcome = resume_run(tmp_path / "run", QUIET) if resumed else start_run(config(), tmp_path / "run", QUIET)
    found = [outcome.run.evaluate("valid", "best"), outcome.run.evaluate("test"), outcome.run.evaluate("valid")]
    assert sorted(done) == ["data", "meta", "parse", "real"]
    monkeypatch.undo()
    which = (("valid", "best"), ("test", "last"), ("valid", "last"))
    assert found == [evaluate_run(tmp_path / "run", split, QUIET, checkpoint) for split, checkpoint in which]


def test_a_finished_run_is_evaluated_with_one_preparation(config, tmp_path, monkeypatch):
    first = start_run(config(), tmp_path / "run", QUIET).run.evaluate("test", "best")
    prepared, prepare = [], TextTask.__init__
    monkeypatch.setattr(TextTask, "__init__", lambda *given: prepared.append(1) or prepare(*given))
    run = resume_run(tmp_path / "run", QUIET).run
    assert prepared == []
    assert [run.evaluate("test", "best"), run.evaluate("valid")["split"], len(prepared)] == [first, "valid", 1]


def test_a_finished_run_stays_as_it_is(config, tmp_path):
    outcome = start_run(config(), tmp_path / "run", QUIET)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock"]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) for path in files}
    again = resume_run(tmp_path / "run", QUIET)
    assert replace(again, seconds=0.0) == replace(outcome, seconds=0.0)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) for path in files} == before


def test_a_finished_run_needs_neither_its_data_nor_a_folder_to_write_to(own_text, tmp_path, monkeypatch):
    start_run(own_text(), tmp_path / "run", QUIET)
    (tmp_path / "my.txt").unlink()

    def locked(self: RunLock) -> None:
        raise LinnetError("cannot lock")

    monkeypatch.setattr(RunLock, "__enter__", locked)  # as in a folder that may only be read
    assert resume_run(tmp_path / "run", QUIET).step == 6


def test_a_second_process_is_refused(config, tmp_path):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    edit(tmp_path / "run", "steps = 2", "steps = 6")
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


def test_a_damaged_checkpoint_is_named_and_skipped(config, tmp_path, last):
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


def test_without_an_intact_checkpoint_nothing_is_overwritten(config, tmp_path):
    start_run(config(steps=2, save_every=2), tmp_path / "run", QUIET)
    (tmp_path / "run/checkpoints/step-2/state.json").unlink()
    with pytest.raises(LinnetError, match="no checkpoint is intact"):
        resume_run(tmp_path / "run", Listening())
    assert (tmp_path / "run/checkpoints/step-2/model.safetensors").exists()


def test_a_start_that_was_killed_does_not_leave_a_run(config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").touch()
    (tmp_path / "run/.linnet-config.toml-123-abcd.tmp").write_text("task")
    assert start_run(config(steps=2), tmp_path / "run", QUIET).step == 2
    assert not list((tmp_path / "run").glob(".linnet-*"))


def test_other_versions_and_threads_are_reported(config, tmp_path, monkeypatch):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    edit(tmp_path / "run", "steps = 2", "steps = 3")
    monkeypatch.setattr(
        "linnet.train.environment.environment_versions", lambda: {"linnet": "0", "torch": "9.9", "machine": "m"}
    )
    screen = Listening()
    resume_run(tmp_path / "run", screen)
    assert len(screen.warnings) == 1
    assert "9.9 now" in screen.warnings[0]


def test_a_lost_best_checkpoint_is_reported_at_once(config, tmp_path):
    start_run(config(steps=6, lr=1e-30), tmp_path / "run", QUIET)  # nothing is better than the first
    assert checkpoint_steps(tmp_path / "run/checkpoints") == [3, 4, 6]
    edit(tmp_path / "run", "steps = 6", "steps = 7")
    for gone in (False, True):
        mine, screen = shutil.copytree(tmp_path / "run", tmp_path / f"run-{gone}"), Listening()
        if gone:
            shutil.rmtree(mine / "checkpoints/step-3")
        resume_run(mine, screen)
        assert ["best checkpoint so far, step 3, is missing" in text for text in screen.warnings] == [True] * gone


def test_a_run_can_be_extended(config, tmp_path):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    edit(tmp_path / "run", "steps = 2", "steps = 4")
    assert resume_run(tmp_path / "run", QUIET).step == 4


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(config, tmp_path, last):
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
    before = files.write_file_bytes

    def full(descriptor: int, data: bytes) -> None:
        if "step-4" in os.readlink(f"/proc/self/fd/{descriptor}"):
            before(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        before(descriptor, data)

    (tmp_path / "r.toml").write_text(dump_config(settings))
    monkeypatch.setattr(files, "write_file_bytes", full)
    assert linnet(["train", str(tmp_path / "r.toml"), "--out", str(tmp_path / "run"), "--json"]) == 1
    out, err = capfd.readouterr()
    assert (out, err) == ("", f"linnet: cannot write {tmp_path}/run/checkpoints/step-4: No space left on device\n")
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-2"]
    read_checkpoint(tmp_path / "run/checkpoints/step-2")
    monkeypatch.undo()
    assert resume_run(tmp_path / "run", QUIET).step == 6


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
