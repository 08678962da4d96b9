"""Time and peak memory of a step of a Long Range Arena model, in training and inference, by length.

This is the measurement of TransNormer's Table 7; the paper does not state its batch size.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from linnet.bench.machine import describe_machine
from linnet.bench.memory import Job, peak_memory_server, serve_memory_jobs
from linnet.bench.timing import time_calls
from linnet.models.backbone import Model
from linnet.models.config import ModelConfig
from linnet.models.presets import preset

LENGTHS = (1024, 2048, 3072, 4096, 5120)
BATCH = 4
SYMBOLS = 257  # the tokens of LRA Text: bytes and padding


def lra_bench_step(
    config: ModelConfig, which: str, tokens: int, batch: int, compiled: bool = False
) -> Callable[[], None]:
    """One step of a classifier: `which` is "training" (forward, backward, AdamW) or "inference"."""
    torch.manual_seed(0)
    model = Model(config)
    run = torch.compile(model) if compiled else model
    ids, labels = torch.randint(SYMBOLS, (batch, tokens)), torch.randint(config.classes, (batch,))

    def infer() -> None:
        with torch.no_grad():
            run(ids)

    if which == "inference":
        model.eval()
        return infer
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        cross_entropy(run(ids), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return train


def measure_lra_speed(
    systems: Mapping[str, str],
    tokens: int,
    rounds: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Steps per second of each system (name to preset) at one length, in training and inference, and peak memory."""
    total, done = len(systems) * (2 * rounds + 1), 0

    def advance() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    calls = {
        f"{which} {name}": lra_bench_step(preset(model, max_length=tokens), which, tokens, BATCH)
        for name, model in systems.items()
        for which in ("training", "inference")
    }
    timings = time_calls(calls, rounds, progress=advance)
    rows = []
    with peak_memory_server("linnet.bench.lra") as peak:
        for name, model in systems.items():
            speed = {kind: float(f"{1 / timings[f'{kind} {name}'].seconds:.4g}") for kind in ("training", "inference")}
            memory = peak({"model": model, "tokens": tokens, "batch": BATCH})
            rows.append({"row": name, "preset": model, **speed, "memory": memory})
            advance()
    others = [timing.others for timing in timings.values() if timing.others is not None]
    return {
        "tokens": tokens,
        "batch": BATCH,
        "rounds": rounds,
        "others": max(others, default=None),  # cores that other programs kept busy in the meantime
        "environment": describe_machine(),
        "rows": rows,
    }


def _training(job: Job) -> Callable[[], None]:
    """The training step of a job."""
    return lra_bench_step(preset(job["model"], max_length=job["tokens"]), "training", job["tokens"], job["batch"])


def _warm_up(job: Job) -> None:
    """Do the same work on a few tokens."""
    _training({**job, "tokens": 64})()


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve_memory_jobs(_warm_up, _training)
