"""Promise 3b: a command removes what a killed one has left."""

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from linnet.cli.app import run_app
from linnet.train.run import start_run
from tests.prove.promise import Trials, promise
from tests.prove.runs import QUIET, child, ended, kill_child, small_run
from tests.storage.faults import fail_at, kill

CALLS = 60  # the first system calls of a command, among which one is drawn


@promise(
    "3b",
    "A command removes at once what a killed one has left, and its result is the usual one.",
    "20 SIGKILLs of each of `report`, `export`, `analyze` and `bench`, half of them at random moments, half at random "
    "system calls, then the command to its end: no temporary file is left, and an export has the usual bytes.",
)
def killed_commands_leave_nothing(trials: Trials) -> None:
    """20 kills of each command."""
    rng, folder = random.Random(0), trials.folder
    run, place = folder / "run", folder / "out"
    start_run(small_run(folder, steps=2), run, QUIET)
    bench = ["bench", "ops", "--quick", "--lengths", "256,512", "--only", "linear", "--no-peers"]
    commands = {
        "export": ["export", str(run), "--out", str(place / "model")],
        "report": ["report", str(run), "--out", str(place / "report.html")],
        "analyze": ["analyze", str(run), "--samples", "1", "--out", str(place / "analysis")],
        "bench": [*bench, "--out", str(place / "bench")],
    }
    for name in list(commands)[: 1 if trials.short else None]:
        place.mkdir()
        start = time.perf_counter()
        os.waitpid(child(lambda name=name: run_app(commands[name])), 0)
        usual, whole = time.perf_counter() - start, _contents(place)
        shutil.rmtree(place)
        place.mkdir()
        kills = 0
        for tried in range(200):
            if kills == trials.number(20, 4):
                break
            inside = tried % 2 == 0  # most of the time is not spent writing, so half of the kills are system calls
            call = rng.randrange(CALLS) if inside else None
            pid = child(lambda name=name, call=call: _killed(commands[name], call))
            status = ended(pid, 600 if inside else usual * rng.uniform(0.05, 1.0))
            if status is None:
                kill_child(pid)
            if status is None or os.WIFSIGNALED(status):
                kills += 1
            elif name == "export":
                shutil.rmtree(place / "model")
        if name == "export":
            shutil.rmtree(place / "model", ignore_errors=True)
        code = os.waitstatus_to_exitcode(os.waitpid(child(lambda name=name: run_app(commands[name])), 0)[1])
        left = [path.name for path in (*place.rglob(".linnet-*"), *run.rglob(".linnet-*"))]
        names = set(_contents(place)) == set(whole)
        same = _contents(place) == whole if name == "export" else names
        for _ in range(kills):
            trials.check(code == 0 and not left and same, f"{name}: code {code}, left {left}, the usual result: {same}")
        shutil.rmtree(place)


def _killed(command: list[str], call: int | None) -> int:
    """Run a command that dies at one of its system calls that change the disk."""
    with pytest.MonkeyPatch.context() as patch:
        if call is not None:
            fail_at(patch, call, kill)
        return run_app(command)


def _contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
