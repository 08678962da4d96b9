"""Promise 1: a kill at any moment. Promise 3: failures at every system call that writes."""

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from linnet.models.loading import export_model, load_model
from linnet.storage import checkpoint_steps, clean_temporary_files, newest_checkpoint
from linnet.storage.verify import verify_folder
from linnet.train import saving
from tests.prove.promise import Trials, promise
from tests.prove.runs import child, ended, go_on, kill_child, last_bytes, small_run
from tests.storage.faults import calls_of, fail_at, interrupt, kill, no_space, no_warning, save, value


def _killed_inside_save(config, folder: Path, save_number: int, call: int) -> None:
    """Train, and die at one system call of one save."""
    original, count = saving.save_checkpoint, iter(range(10**9))

    def watched(*arguments):
        if next(count) != save_number:
            return original(*arguments)
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, call, kill)
            return original(*arguments)

    saving.save_checkpoint = watched
    go_on(config, folder)


@promise(
    "1",
    "A run that is killed at any moment resumes to the same weights, optimizer state and metrics, bit for bit.",
    "SIGKILL at random moments of small runs, and at a random system call inside a save; every run is resumed until "
    "it ends and compared with an uninterrupted one. Nothing of killed processes is left.",
)
def kill_anywhere(trials: Trials) -> None:
    """200 kills, at least 50 of them inside a save."""
    rng, usual = random.Random(0), {}
    tasks = ("causal_lm", "masked_lm", "recall")
    for task in tasks:
        start = time.perf_counter()
        config = small_run(trials.folder, task)
        pid = child(lambda config=config, task=task: go_on(config, trials.folder / f"whole-{task}"))
        os.waitpid(pid, 0)
        usual[task] = time.perf_counter() - start
    wanted = {"random": trials.number(150, 2), "inside a save": trials.number(60, 2)}
    for kind, number in wanted.items():
        kills, run = 0, 0
        while kills < number:
            task = tasks[run % 3]
            run += 1
            config, folder = small_run(trials.folder, task), trials.folder / "killed"
            died = 0
            while True:
                if kind == "random" or died > 3:
                    pid = child(lambda config=config, folder=folder: go_on(config, folder))
                else:
                    at = (rng.randrange(3), rng.randrange(30))
                    pid = child(lambda config=config, folder=folder, at=at: _killed_inside_save(config, folder, *at))
                patience = usual[task] * rng.uniform(0.05, 0.9) if kind == "random" and kills < number else 600
                status = ended(pid, patience)
                if status is None:
                    kill_child(pid)
                    kills, died = kills + 1, died + 1
                elif os.WIFSIGNALED(status):
                    kills, died = kills + 1, died + 1
                else:
                    break
            same = status == 0 and last_bytes(folder) == last_bytes(trials.folder / f"whole-{task}")
            same = same and not list(folder.rglob(".linnet-*"))
            for _ in range(died):
                trials.check(same, f"{task}, {kind}: the bits differ, or something is left")
            shutil.rmtree(folder)
        trials.measured[f"Kills, {kind}"] = kills


@promise(
    "3",
    "No torn checkpoint or export is ever visible.",
    "Every open, write, fsync, close, mkdir and rename of a save and of an export fails once with ENOSPC and once as "
    "an interruption, and the process dies at it once; so do those of a whole run, without interruptions. What is "
    "visible then is verified, and the run resumes to the usual bytes.",
)
def no_torn_file(trials: Trials) -> None:
    """Each system call fails in each way."""
    folder = trials.folder
    for replaces in (False, True):
        step = 1 if replaces else 2
        save(folder / "count", 1)
        calls = calls_of(lambda step=step: save(folder / "count", step, value=7.0))
        for call in range(0, calls, trials.number(1, 6)):
            for failure in (no_space, interrupt, kill):
                place = folder / "save"
                save(place, 1)
                _fails(lambda step=step, place=place: save(place, step, value=7.0), call, failure)
                with trials.survives(f"save, call {call}, {failure.__name__}"):
                    clean_temporary_files(place)  # as resuming does first: a checkpoint set aside gets its name back
                    assert value(newest_checkpoint(place, no_warning)) in (1.0, 7.0)
                shutil.rmtree(place)
        shutil.rmtree(folder / "count")
    config = small_run(folder, steps=2, save_every=1, eval_every=2, accumulate=1)
    go_on(config, folder / "whole")
    model = load_model(folder / "whole")
    calls = calls_of(lambda: export_model(model, folder / "once"))
    for call in range(0, calls, trials.number(1, 8)):
        for failure in (no_space, interrupt, kill):
            place = folder / "export"
            _fails(lambda place=place: export_model(model, place), call, failure)
            with trials.survives(f"export, call {call}, {failure.__name__}"):
                assert not place.exists() or all(part.ok for part in verify_folder(place, load_model))
            shutil.rmtree(place, ignore_errors=True)
    calls = calls_of(lambda: go_on(config, folder / "counted"))
    for call in range(0, calls, trials.number(1, 40)):
        for failure in (no_space, kill):
            place = folder / "run"
            _fails(lambda place=place: go_on(config, place), call, failure)
            with trials.survives(f"run, call {call} of {calls}, {failure.__name__}"):
                found = verify_folder(place, load_model) if (place / "config.toml").exists() else []
                # A run that died before its first checkpoint has no environment or timings yet; it starts again.
                torn = [part for part in found if not part.ok and checkpoint_steps(place / "checkpoints")]
                assert not torn, torn
                os.waitpid(child(lambda place=place: go_on(config, place)), 0)
                assert last_bytes(place) == last_bytes(folder / "whole")
            shutil.rmtree(place, ignore_errors=True)


def _fails(action, call: int, failure) -> None:
    """Do an action in a child, in which one system call fails."""

    def doomed() -> None:
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, call, failure)
            action()

    os.waitpid(child(doomed), 0)
