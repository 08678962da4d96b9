"""Promise 5: a full disk."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

from linnet.errors import LinnetError
from linnet.models.loading import load_model
from linnet.storage import newest_checkpoint
from linnet.storage.verify import verify_folder
from linnet.train.run import resume_run, start_run
from tests.prove.promise import Trials, promise
from tests.prove.runs import QUIET, child, last_bytes, small_run
from tests.storage.faults import no_warning, save, temporaries, value

PAGE = 4096


@promise(
    "5",
    "A full disk ends a run with one line; earlier checkpoints stay intact, and it later resumes to the same bits.",
    "A save whose files may have at most n bytes, for every n up to the largest file; then saves on a small tmpfs with "
    "every number of free pages that a save needs; then whole runs there, which are resumed when there is space.",
)
def full_disk(trials: Trials) -> None:
    """Every byte, then every page, then runs."""
    folder = trials.folder
    largest = max(path.stat().st_size for path in save(folder / "size", 1).iterdir())
    with _ignoring_the_signal():
        for limit in range(0, largest + 1, trials.number(1, 97)):
            _limited_save(trials, folder / "bytes", limit, largest)
    mounted = folder / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "linnet-prove", str(mounted)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        trials.skipped.append("a small tmpfs, which this user may not mount")
        return
    try:
        _on_small_disk(trials, mounted)
    finally:
        subprocess.run(["umount", str(mounted)], check=False)


@contextlib.contextmanager
def _ignoring_the_signal():
    before, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def _limited_save(trials: Trials, folder: Path, limit: int, largest: int) -> None:
    """One save whose files may have `limit` bytes."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    save(folder, 1)
    said = ""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        save(folder, 2, value=7.0)
    except LinnetError as error:
        said = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    with trials.survives(f"files of at most {limit} bytes"):
        assert said == ("" if limit >= largest else f"cannot write {folder}/step-2: File too large"), said
        assert value(newest_checkpoint(folder, no_warning)) == (1.0 if said else 7.0)
        assert temporaries(folder) == []
    shutil.rmtree(folder)


def _on_small_disk(trials: Trials, mounted: Path) -> None:
    whole = trials.folder / "whole"
    config = small_run(trials.folder, steps=6, save_every=2, eval_every=6, keep_last=1)
    start_run(config, whole, QUIET)
    for free in range(0, 24, trials.number(1, 8)):
        place, full = mounted / "checkpoints", mounted / "full"
        save(place, 1)
        _fill(full, mounted, free)
        said = ""
        try:
            save(place, 2, value=7.0)
        except LinnetError as error:
            said = str(error)
        with trials.survives(f"{free} free pages"):
            assert said in ("", f"cannot write {place}/step-2: No space left on device"), said
            assert value(newest_checkpoint(place, no_warning)) == (1.0 if said else 7.0)
            assert temporaries(place) == []
        full.unlink()
        shutil.rmtree(place)
    for free in range(1, 120, trials.number(3, 60)):
        run, full = mounted / "run", mounted / "full"
        _fill(full, mounted, free)
        status = os.waitpid(child(lambda run=run: _code(config, run)), 0)[1]
        with trials.survives(f"a run with {free} free pages"):
            assert os.waitstatus_to_exitcode(status) in (0, 1), status
            if list((run / "checkpoints").glob("step-*")):
                assert newest_checkpoint(run / "checkpoints", no_warning) is not None
            full.unlink()
            if (run / "config.toml").exists():
                resume_run(run, QUIET)
                assert last_bytes(run) == last_bytes(whole), "the bytes differ"
                assert all(part.ok for part in verify_folder(run, load_model))
        full.unlink(missing_ok=True)
        shutil.rmtree(run, ignore_errors=True)


def _code(config, run: Path) -> int:
    """1 if a run ends with one line."""
    try:
        start_run(config, run, QUIET)
    except LinnetError as error:
        return 1 if "\n" not in str(error) and "No space left" in str(error) else 9
    return 0


def _fill(full: Path, mounted: Path, free: int) -> None:
    """Leave so many pages free."""
    left = os.statvfs(mounted).f_bavail
    with full.open("wb") as file:
        for _ in range(left - free):
            file.write(bytes(PAGE))
