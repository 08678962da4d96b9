"""Small real runs for the trials: their settings, children that are killed, and what a finished run holds."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from linnet.config import RunConfig, parse_config
from linnet.screen import Screen
from linnet.storage import checkpoint_steps
from linnet.train.run import resume_run, start_run

ROOT = Path(__file__).parent.parent.parent
QUIET = Screen(quiet=True)


def small_run(folder: Path, task: str = "causal_lm", **train: Any) -> RunConfig:
    """A run of a few thousand weights with dropout, accumulation, evaluations and frequent checkpoints."""
    text = {"corpus": "text", "path": str(ROOT / "CONTRIBUTING.md"), "tokenizer": "bytes", "context": 16}
    pairs = {"context": 12, "vocab_size": 9, "pairs": [1, 2]}
    data = pairs if task == "recall" else {**text, "cache": str(folder / "cache")}
    preset = "transnormer_t2_roberta_small" if task == "masked_lm" else "transnormer_t2_lm_small"
    model = {"preset": preset, "layers": ["diag", "norm"], "width": 16, "heads": 2, "ffn_width": 24, "dropout": 0.2}
    usual = {"steps": 12, "batch": 2, "accumulate": 2, "lr": 1e-2, "warmup": 2, "threads": 1}
    every = {"eval_every": 4, "eval_batches": 2, "save_every": 2, "log_every": 3}
    return parse_config({"task": task, "data": data, "model": model, "train": {**usual, **every, **train}})


def go_on(config: RunConfig, folder: Path) -> None:
    """Start the run, or resume it if it has begun."""
    if (folder / "config.toml").exists():
        resume_run(folder, QUIET)
    else:
        start_run(config, folder, QUIET)


def last_bytes(folder: Path) -> dict[str, bytes]:
    """The bytes of the newest checkpoint of a run and of its metrics."""
    path = folder / f"checkpoints/step-{checkpoint_steps(folder / 'checkpoints')[-1]}"
    return {file.name: file.read_bytes() for file in [*sorted(path.iterdir()), folder / "metrics.jsonl"]}


def child(action: Callable[[], object]) -> int:
    """Run an action in a forked child, which ends with 0, or with 1 if it raises; returns its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            signal.alarm(600)
            result = action()
            code = result if isinstance(result, int) else 0
        finally:
            os._exit(code)
    return pid


def ended(pid: int, seconds: float) -> int | None:
    """The wait status of a child that ended within so many seconds, else None."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.monotonic() > end:
            return None
        time.sleep(0.001)


def kill_child(pid: int) -> None:
    """Kill a child and wait for it."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
