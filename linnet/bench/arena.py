"""Speed and memory of the Long Range Arena's models as sequences get longer: the shape of TransNormer's Table 7.

The paper does not state its batch. Here the models are those of the presets, on Text's vocabulary, and take turns.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from linnet.bench.machine import environment
from linnet.bench.memory import Job, peak_server, serve
from linnet.bench.timing import time_in_turns
from linnet.models.backbone import Model
from linnet.models.presets import preset

LENGTHS = (1024, 2048, 3072, 4096, 5120)
BATCH = 4


def measure_arena(
    systems: Mapping[str, str],
    tokens: int,
    rounds: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Steps a second of each system (name to preset) at one length, in training and inference, and peak memory."""
    total, done = len(systems) * (2 * rounds + 1), 0

    def advance() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    calls: dict[str, Callable[[], None]] = {}
    for name, model in systems.items():
        train, infer = steps(model, tokens, BATCH)
        calls |= {f"training {name}": train, f"inference {name}": infer}
    timings = time_in_turns(calls, rounds, progress=advance)
    rows = []
    with peak_server("linnet.bench.arena") as peak:
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
        "others": max(others, default=None),  # cores that other programs kept busy meanwhile
        "environment": environment(),
        "rows": rows,
    }


def steps(name: str, tokens: int, batch: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """A step of training and one of inference, of a preset with a position for each token."""
    torch.manual_seed(0)
    model = Model(preset(name, max_length=tokens))
    optimizer = torch.optim.AdamW(model.parameters())
    ids, labels = torch.randint(257, (batch, tokens)), torch.randint(2, (batch,))

    def train() -> None:
        model.train()
        cross_entropy(model(ids), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def infer() -> None:
        model.eval()
        with torch.no_grad():
            model(ids)

    return train, infer


def _training(job: Job) -> Callable[[], None]:
    """The step of training that a job asks for."""
    return steps(job["model"], job["tokens"], job["batch"])[0]


def _warm_up(job: Job) -> None:
    """The same on a few tokens."""
    _training({**job, "tokens": 64})()


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(_warm_up, _training)
