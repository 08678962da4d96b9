"""Checkpoints that are written while training goes on: the same bytes, the same guarantees, little waiting."""

import os
import signal
import threading
import time

import pytest
import torch

from linnet.errors import LinnetError
from linnet.storage import checkpoint_steps, read_checkpoint, save_checkpoint
from linnet.train import saving
from linnet.train.run import resume_run, start_run
from linnet.train.saving import copy_for_saving
from tests.train.test_run import QUIET, edit


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm", "recall"])
def test_the_bytes_are_those_of_a_run_that_waits(config, tmp_path, last, task):
    before = set(threading.enumerate())
    for name, given in (("waits", False), ("goes_on", True)):
        start_run(config(task, save_async=given, save_every=1), tmp_path / name, QUIET)
    assert last(tmp_path / "waits") == last(tmp_path / "goes_on")
    assert set(threading.enumerate()) == before


def test_training_goes_on_while_a_checkpoint_is_written(config, tmp_path, monkeypatch):
    """The writing of step 2 ends only when step 3 has been trained."""
    updated, threads = threading.Event(), []

    def slow(folder, step, *rest):
        threads.append(threading.current_thread().name)
        if step == 2:
            assert updated.wait(60)
        return save_checkpoint(folder, step, *rest)

    monkeypatch.setattr(saving, "save_checkpoint", slow)
    update = saving.CheckpointSaver.check
    steps = []

    def count(saver):
        steps.append(1)
        if len(steps) > 3:  # the loop is past its third update
            updated.set()
        update(saver)

    monkeypatch.setattr(saving.CheckpointSaver, "check", count)
    start_run(config(steps=4, save_every=2, eval_every=0), tmp_path / "run", QUIET)
    assert threads == ["checkpoint", "checkpoint"]
    assert checkpoint_steps(tmp_path / "run/checkpoints") == [2, 4]


def test_a_kill_while_a_checkpoint_is_written_loses_nothing(config, tmp_path, last):
    """The process dies after each number of system calls of the thread, then resumes to the same bits."""
    from tests.storage.faults import fail_at, in_child, kill

    settings = config(steps=4, save_every=1, eval_every=2)
    start_run(settings, tmp_path / "whole", QUIET)
    seen = set()
    for call in (0, 3, 7, 11, 14, 18, 25, 40):
        folder = tmp_path / str(call)

        def doomed(folder=folder, call=call):
            with pytest.MonkeyPatch.context() as patch:
                main, original = threading.main_thread(), save_checkpoint

                def watched(*args):
                    assert threading.current_thread() is not main
                    with pytest.MonkeyPatch.context() as inner:
                        if args[1] == 2:
                            fail_at(inner, call, kill)
                        return original(*args)

                patch.setattr(saving, "save_checkpoint", watched)
                start_run(settings, folder, QUIET)

        _, status = os.waitpid(in_child(doomed), 0)
        seen.add(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
        resume_run(folder, QUIET)
        assert last(folder) == last(tmp_path / "whole")
    assert True in seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_a_checkpoint_is_written_loses_nothing(config, tmp_path, monkeypatch, last, number):
    """The thread is inside the save of step 2 when the signal arrives; both that step and the last one are saved."""
    settings = config(steps=6, save_every=2, eval_every=0, keep_last=9)
    start_run(settings, tmp_path / "whole", QUIET)

    def interrupted(folder, step, *rest):
        if step == 2:
            os.kill(os.getpid(), number)
            time.sleep(0.3)  # the main thread handles it meanwhile
        return save_checkpoint(folder, step, *rest)

    monkeypatch.setattr(saving, "save_checkpoint", interrupted)
    outcome = start_run(settings, tmp_path / "run", QUIET)
    assert outcome.signal == number
    assert checkpoint_steps(tmp_path / "run/checkpoints") == sorted({2, outcome.step})
    monkeypatch.undo()
    assert resume_run(tmp_path / "run", QUIET).step == 6
    assert last(tmp_path / "run") == last(tmp_path / "whole")


def test_a_failure_ends_the_run_at_its_next_update(config, tmp_path, monkeypatch):
    def full(folder, step, *rest):
        if step == 2:
            raise LinnetError(f"cannot write {folder}/step-2: No space left on device")
        return save_checkpoint(folder, step, *rest)

    before = set(threading.enumerate())
    monkeypatch.setattr(saving, "save_checkpoint", full)
    with pytest.raises(LinnetError, match="step-2: No space left on device"):
        start_run(config(steps=1000, save_every=2, eval_every=0), tmp_path / "run", QUIET)
    assert set(threading.enumerate()) == before
    monkeypatch.undo()
    edit(tmp_path / "run", "steps = 1000", "steps = 4")
    assert resume_run(tmp_path / "run", QUIET).step == 4


def test_without_memory_for_a_copy_the_run_waits(config, tmp_path, monkeypatch, last):
    start_run(config(), tmp_path / "usual", QUIET)
    monkeypatch.setattr(saving, "_free_memory", lambda: 1000)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail("a thread was started"))
    start_run(config(), tmp_path / "tight", QUIET)
    assert last(tmp_path / "tight") == last(tmp_path / "usual")


def test_a_copy_shares_what_the_original_shares():
    weight = torch.randn(4, 3)
    first = copy_for_saving({"a": weight, "b": weight, "c": weight.t(), "d": torch.zeros(0)}, {})
    assert first["a"].data_ptr() == first["b"].data_ptr() != weight.data_ptr()
    assert torch.equal(first["c"], weight.t())
    second = copy_for_saving({"a": weight + 1, "b": torch.zeros(5)}, first)
    assert second["a"].data_ptr() == first["a"].data_ptr()
    assert second["b"].shape == (5,)


def test_the_best_k_are_kept_and_resumed(config, tmp_path):
    settings = config(steps=12, eval_every=1, save_every=0, keep_best=3, keep_last=1)
    start_run(settings, tmp_path / "run", QUIET)
    kept = checkpoint_steps(tmp_path / "run/checkpoints")
    at = read_checkpoint(tmp_path / f"run/checkpoints/step-{kept[-1]}").position
    assert len(at.best_steps) == 3
    assert at.best_ranks == sorted(at.best_ranks)
    assert set(kept) == {*at.best_steps, 12}
    start_run(config(steps=12, eval_every=1, save_every=1, keep_best=3), tmp_path / "other", QUIET)
    newest = max(checkpoint_steps(tmp_path / "other/checkpoints"))
    assert read_checkpoint(tmp_path / f"other/checkpoints/step-{newest}").position.best_steps == at.best_steps


def test_waiting_is_recorded(config, tmp_path):
    from linnet.storage import read_run_metrics

    start_run(config(steps=4, log_every=1, save_every=1), tmp_path / "run", QUIET)
    waits = [r["saving"] for r in read_run_metrics(tmp_path / "run/timings.jsonl") if r["split"] == "train"]
    assert len(waits) == 4
    assert all(0 <= wait < 60 for wait in waits)
