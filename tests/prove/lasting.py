"""Promise 18: long runs keep their memory and descriptors. 18b: saving takes little of a step."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from linnet.storage import read_run_metrics
from linnet.train.run import start_run
from tests.prove.generation import writing_model
from tests.prove.promise import Trials, promise
from tests.prove.runs import QUIET, small_run

GROWTH = 0.05  # of the memory in use


def _memory() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _watch(action: Callable[[], object]) -> tuple[list[int], list[int]]:
    """The memory and the descriptors of this process while an action runs, ten times per second."""
    memory, descriptors, done = [], [], threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            memory.append(_memory())
            descriptors.append(_descriptors())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        action()
    finally:
        done.set()
        thread.join()
    return memory, descriptors


@promise(
    "18",
    "A long run or a long text takes no more memory, descriptors or threads at its end than early on.",
    "A run of 10,000 steps with checkpoints, evaluations and records, and 100,000 generated tokens: the median memory "
    "of the last tenth of the time beside that of the second tenth.",
)
def long_runs_stay_flat(trials: Trials) -> None:
    """A run, then a text."""
    steps = trials.number(10_000, 200)
    config = small_run(trials.folder, steps=steps, save_every=250, eval_every=1000, log_every=50, accumulate=1)
    texts = trials.number(100_000, 1000)
    model = writing_model(["norm", "lln"])

    def write() -> None:
        with torch.no_grad():
            for _ in model.stream(torch.zeros(1, 4, dtype=torch.int64), texts):
                trials.go_on()

    start_run(
        small_run(trials.folder, steps=2), trials.folder / "first", QUIET
    )  # it opens the kernels, which stay open
    threads = threading.active_count()
    for what, action in (("run", lambda: start_run(config, trials.folder / "run", QUIET)), ("text", write)):
        before = _descriptors()
        memory, descriptors = _watch(action)
        tenth = max(len(memory) // 10, 1)
        early, late = (median(memory[part]) for part in (slice(tenth, 2 * tenth), slice(-tenth, None)))
        growth = late / early - 1
        trials.measured[f"Growth of memory, {what}, in percent"] = round(100 * growth, 2)
        trials.check(growth < (0.5 if trials.short else GROWTH), f"{what}: the memory grew by {growth:.1%}")
        trials.check(_descriptors() == before, f"{what}: {before} descriptors before, {_descriptors()} after")
        trials.check(max(descriptors) < before + 20, f"{what}: {max(descriptors)} descriptors were open at once")
        trials.check(threading.active_count() == threads, f"{what}: {threading.active_count()} threads are left")
    trials.measured["Steps"], trials.measured["Tokens"] = steps, texts


@promise(
    "18b",
    "Checkpoints are written while training continues: waiting for them takes under 1 % of the time.",
    "A model of 3 million weights that saves every 10 steps (the default is 100): the seconds that timings.jsonl "
    "records for waiting, beside those of the updates, with and without `save_async`.",
)
def saving_takes_little(trials: Trials) -> None:
    """Two runs."""
    model = {"preset": "transnormer_t2_lm_small", "layers": ["diag", "norm", "norm"], "width": 256, "heads": 4}
    for given in (True, False):
        config = small_run(
            trials.folder,
            steps=trials.number(60, 10),
            save_every=10 if not trials.short else 5,
            save_async=given,
            eval_every=0,
            log_every=1,
            batch=16,
            accumulate=1,
        )
        wide = {**model, "ffn_width": 768, "dropout": 0.0}
        data = config.data.model_copy(update={"context": 64})
        config = config.model_copy(update={"model": wide, "data": data})
        start = time.perf_counter()
        start_run(config, trials.folder / f"run-{given}", QUIET)
        whole = time.perf_counter() - start
        records = [r for r in read_run_metrics(trials.folder / f"run-{given}/timings.jsonl") if r["split"] == "train"]
        records = records[2:]  # without the first steps, which compile and claim memory
        waited, updated = (sum(r[key] for r in records) for key in ("saving", "seconds"))
        name = "in the background" if given else "waiting"
        trials.measured[f"Percent of the time, {name}"] = round(100 * waited / (waited + updated), 3)
        trials.measured[f"Milliseconds per step, {name}"] = round(1000 * updated / len(records), 1)
        if given and not trials.short:
            trials.check(
                waited / (waited + updated) < 0.01, f"{waited:.3f} s of {waited + updated:.1f} s ({whole:.0f})"
            )
        else:
            trials.check(waited >= 0, "waiting is recorded")
