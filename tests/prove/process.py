"""One promise in a process of its own, which may crash or hang without ending the others."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.prove.promise import Skip, Trials
from tests.prove.promises import ordered_promises
from tests.prove.record import ROOT

SILENCE = 2400.0  # seconds without a finished trial after which a process counts as hanging: the whole has as many


def try_promise(name: str, short: bool, tell: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Try one promise in this process; `tell` hears the number of trials from time to time."""
    (found,) = (each for each in ordered_promises() if each.name == name)
    folder = Path(tempfile.mkdtemp(prefix=f"linnet-prove-{name}-"))
    trials, start = Trials(folder, short, tell), time.perf_counter()
    try:
        found.prove(trials)
    except Skip as reason:
        trials.skipped.append(str(reason))
    except Exception as error:  # noqa: BLE001  a promise that cannot be tried is not kept
        trials.check(False, f"the trials ended: {type(error).__name__}: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "number": found.number,
        "name": name,
        "sentence": found.sentence,
        "how": found.how,
        "trials": trials.count,
        "failed": trials.failed,
        "failures": trials.failures,
        "skipped": trials.skipped,
        "measured": trials.measured,
        "minutes": round((time.perf_counter() - start) / 60, 2),
        "cpu_minutes": round(sum(each.ru_utime + each.ru_stime for each in used) / 60, 2),
    }


class Working:
    """The processes that are trying promises, and how many trials each has done."""

    def __init__(self) -> None:
        self.trials: dict[str, int] = {}
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def __str__(self) -> str:
        return " and ".join(f"{name} ({count:,} trials)" for name, count in sorted(self.trials.items())) or "none"

    def end(self) -> None:
        """Kill all of them with their children."""
        for process in list(self.processes.values()):
            _kill(process)


def try_in_process(name: str, short: bool, working: Working) -> dict[str, Any]:
    """Try one promise in a process of its own; one that hangs is killed."""
    command = [sys.executable, "-m", "tests.prove", "--one", name, *(["--short"] if short else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    start, line, killed = time.perf_counter(), "", threading.Event()
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    working.processes[name], working.trials[name] = process, 0
    assert process.stdout is not None
    try:
        while True:
            watch = threading.Timer(SILENCE, lambda: (killed.set(), _kill(process)))
            watch.start()
            more = process.stdout.readline()
            watch.cancel()
            if not more:
                break
            line = more
            if line.strip().isdigit():
                working.trials[name] = int(line)
        process.wait()
        with contextlib.suppress(ValueError, TypeError):
            return dict(json.loads(line))
    finally:
        _kill(process)
        process.wait()
        process.stdout.close()
        del working.processes[name], working.trials[name]
    (found,) = (each for each in ordered_promises() if each.name == name)
    what = f"no trial ended in {SILENCE:.0f} s" if killed.is_set() else f"the process ended with {process.returncode}"
    about = {"number": found.number, "name": name, "sentence": found.sentence, "how": found.how}
    lost = {"trials": 1, "failed": 1, "failures": [what], "skipped": [], "measured": {}}
    return {**about, **lost, "minutes": round((time.perf_counter() - start) / 60, 2), "cpu_minutes": 0.0}


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
