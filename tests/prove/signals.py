"""Promise 6: signals. Promise 7: two processes on one run."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

from linnet.cli.app import run_app
from linnet.config import dump_config
from linnet.storage import checkpoint_steps, read_run_metrics
from tests.prove.promise import Trials, promise
from tests.prove.runs import child, ended, kill_child, last_bytes, small_run

SECONDS = 5.0


def _start(trials: Trials, **train) -> tuple[Path, Path]:
    recipe, folder = trials.folder / "recipe.toml", trials.folder / "run"
    recipe.write_text(dump_config(small_run(trials.folder, **train)))
    return recipe, folder


@promise(
    "6",
    "On SIGTERM, SIGINT or SIGHUP a run saves and exits within 5 seconds with the signal's code; nothing is lost.",
    "A signal at a random moment of a run, then `resume`: the exit code, the time, the step that was saved, and the "
    "bytes at the end.",
)
def signals_save(trials: Trials) -> None:
    """50 of each of two signals, 20 of the third."""
    rng = random.Random(0)
    recipe, folder = _start(trials, steps=60, save_every=0, eval_every=30, log_every=1)
    whole = trials.folder / "whole"
    os.waitpid(child(lambda: run_app(["train", str(recipe), "--out", str(whole), "--json"])), 0)
    slowest = 0.0
    numbers = {signal.SIGTERM: (50, 2), signal.SIGINT: (50, 2), signal.SIGHUP: (20, 1)}
    for number, (most, few) in numbers.items():
        for _ in range(trials.number(most, few)):
            pid = child(lambda: run_app(["train", str(recipe), "--out", str(folder), "--json"]))
            at = rng.randrange(1, 40)
            while sum(r["split"] == "train" for r in read_run_metrics(folder / "metrics.jsonl")) < at:
                time.sleep(0.002)
            os.kill(pid, number)
            start = time.perf_counter()
            status = ended(pid, 60)
            seconds = time.perf_counter() - start
            slowest = max(slowest, seconds)
            code = None if status is None else os.waitstatus_to_exitcode(status)
            saved = max(checkpoint_steps(folder / "checkpoints"), default=0)
            os.waitpid(child(lambda: run_app(["resume", str(folder), "--json"])), 0)
            kept = code in (128 + number, 0) and seconds < SECONDS and last_bytes(folder) == last_bytes(whole)
            what = f"code {code} after {seconds:.1f} s, saved at step {saved}, or other bytes"
            trials.check(kept and saved >= at, f"{number.name} at step {at}: {what}")
            shutil.rmtree(folder)
    trials.measured["Slowest stop in seconds"] = round(slowest, 2)


@promise(
    "7",
    "One process at a time: a second one on the same run is refused, and the lock of a dead one does not block.",
    "`resume`, `repair` and `train` on a run that trains, then the same after its process was killed.",
)
def one_process(trials: Trials) -> None:
    """20 pairs of processes."""
    recipe, folder = _start(trials, steps=100_000, save_every=50, eval_every=0, log_every=1)
    for i in range(trials.number(20, 2)):
        pid = child(lambda: run_app(["train", str(recipe), "--out", str(folder), "--json"]))
        while not read_run_metrics(folder / "metrics.jsonl"):
            time.sleep(0.005)
        for command in (["resume", str(folder)], ["repair", str(folder)]):
            second = child(lambda command=command: run_app(command))
            status = ended(second, 60)
            if status is None:
                kill_child(second)
            code = None if status is None else os.waitstatus_to_exitcode(status)
            trials.check(code == 1, f"{command[0]} beside a run that trains: code {code}")
        kill_child(pid)
        third = child(lambda: run_app(["repair", str(folder)]))
        code = os.waitstatus_to_exitcode(os.waitpid(third, 0)[1])
        trials.check(code == 0, f"trial {i}: repair after a kill: code {code}")
        shutil.rmtree(folder)
