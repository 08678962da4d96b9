"""Kills, interruptions and full disks at every system call leave the new checkpoint or the old one, complete."""

import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest
import torch

from linnet.errors import LinnetError
from linnet.storage.checkpoint import (
    FILES,
    MANIFEST,
    checkpoint_steps,
    checkpoints_to_keep,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from linnet.storage.files import clean_temporary_files
from tests.storage.faults import (
    calls_of,
    fail_at,
    in_child,
    interrupt,
    kill,
    no_space,
    no_warning,
    save,
    temporaries,
    value,
)


@pytest.mark.parametrize("failure", [no_space, interrupt])
@pytest.mark.parametrize("replaces", [False, True])
def test_no_failing_system_call_leaves_a_torn_checkpoint(tmp_path, failure, replaces):
    step = 1 if replaces else 2
    save(tmp_path / "count", 1)
    outcomes = []
    for call in range(calls_of(lambda: save(tmp_path / "count", step, value=7.0))):
        folder = tmp_path / str(call)
        save(folder, 1)
        failed = None
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, call, failure)
            try:
                save(folder, step, value=7.0)
            except (LinnetError, KeyboardInterrupt) as error:
                failed = error
        found = value(newest_checkpoint(folder, no_warning))
        assert found in ((1.0, 7.0) if failed else (7.0,))
        assert 1 in checkpoint_steps(folder)
        if isinstance(failed, LinnetError):
            assert str(failed) == f"cannot write {folder}/step-{step}: No space left on device"
            assert temporaries(folder) == []
        outcomes.append((found, failed is None))
        clean_temporary_files(folder)
        assert temporaries(folder) == []
        assert value(newest_checkpoint(folder, no_warning)) == found
    assert len(outcomes) > 20
    assert outcomes[0] == (1.0, False)  # the first call failed, so nothing had changed
    assert outcomes[-1] == (7.0, False)  # the last call syncs the folder: all is there, if not for ever


@pytest.mark.parametrize("replaces", [False, True])
def test_no_kill_at_any_system_call_leaves_a_torn_checkpoint(tmp_path, replaces):
    step = 1 if replaces else 2
    save(tmp_path / "count", 1)
    seen = set()
    for call in range(calls_of(lambda: save(tmp_path / "count", step, value=7.0))):
        folder = tmp_path / str(call)
        save(folder, 1)

        def doomed(call=call, folder=folder):
            with pytest.MonkeyPatch.context() as patch:
                fail_at(patch, call, kill)
                save(folder, step, value=7.0)

        assert os.WTERMSIG(os.waitpid(in_child(doomed), 0)[1]) == signal.SIGKILL
        clean_temporary_files(folder)
        assert temporaries(folder) == []
        seen.add(value(newest_checkpoint(folder, no_warning)))
    assert seen == {1.0, 7.0}


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """A kill cannot test a power cut, so this checks the order of syncs and renames."""
    events = []
    sync, rename = os.fsync, os.rename

    def recorded_sync(descriptor):
        events.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    def recorded_rename(source, target):
        events.append(("rename", Path(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(os, "rename", recorded_rename)
    final = save(tmp_path, 1)
    *first, folder, named, parent = events
    assert [kind for kind, _ in first] == ["sync"] * 4
    assert [path.name for _, path in first] == [*FILES, MANIFEST]
    assert folder == ("sync", first[0][1].parent)
    assert named == ("rename", final)
    assert parent == ("sync", tmp_path)


def test_kills_at_random_moments_of_a_run(tmp_path):
    def run(folder):
        clean_temporary_files(folder)
        newest = newest_checkpoint(folder, no_warning)
        for step in range(newest.step + 1 if newest else 1, 10_000):
            save(folder, step)
            prune_checkpoints(folder, checkpoints_to_keep(folder, step, best=[1]))

    start = time.perf_counter()
    save(tmp_path / "timed", 1)
    longest = min(0.01 + 6 * (time.perf_counter() - start), 0.2)  # a few saves, on a fast disk or a slow one
    rng, last = random.Random(0), 0
    for _ in range(40):
        pid = in_child(lambda: run(tmp_path))
        time.sleep(rng.uniform(0.0, longest))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        newest = newest_checkpoint(tmp_path, no_warning)
        step = newest.step if newest else 0
        assert step >= last
        assert step == 0 or value(newest) == step
        last = step
    assert last > 5
    clean_temporary_files(tmp_path)
    assert temporaries(tmp_path) == []


def test_a_failed_write_is_reported_in_one_line(tmp_path):
    """A real failure in the middle of a file: the system limits files of this process to 2,000 bytes."""
    save(tmp_path, 1)
    result = tmp_path / "result"
    result.touch()

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            save_checkpoint(tmp_path, 2, {"w": torch.zeros(10_000)}, {}, {})
        except LinnetError as error:
            result.write_text(str(error))

    os.waitpid(in_child(limited), 0)
    assert result.read_text() == f"cannot write {tmp_path}/step-2: File too large"
    assert temporaries(tmp_path) == []
    assert newest_checkpoint(tmp_path, no_warning).step == 1
