"""The cost of one attention layer against the length: time and peak memory of forward and backward, on the CPU."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from linnet.attention.base import create_mixer, describe_attention
from linnet.bench.machine import describe_machine
from linnet.bench.memory import Job, peak_memory_server, serve_memory_jobs
from linnet.bench.timing import time_calls

FORMAT = "linnet-bench-layer-1"
WIDTH, HEADS = 512, 8


def measure_layer_costs(
    names: Sequence[str],
    lengths: Sequence[int],
    rounds: int = 5,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure forward and backward of one layer with its projections, batch 1, for each name and length; as JSON.

    The layer is causal if the mechanism has a causal form.
    """
    total, done = len(names) * len(lengths) * (rounds + 1), 0

    def advance() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    rows: list[dict[str, Any]] = []
    for N in lengths:
        calls = {name: _layer_work({"attention": name, "tokens": N}) for name in names}
        for name, timing in time_calls(calls, rounds, progress=advance).items():
            seconds, low, high = (float(f"{t:.4g}") for t in (timing.seconds, timing.low, timing.high))
            row = {"attention": name, "tokens": N, "seconds": seconds, "low": low, "high": high}
            rows.append({**row, "others": timing.others})
    with peak_memory_server("linnet.bench.layer") as peak:
        for row in rows:
            row["memory"] = peak({key: row[key] for key in ("attention", "tokens")})
            advance()
    settings = {"width": WIDTH, "heads": HEADS, "batch": 1, "rounds": rounds, "type": "float32"}
    return {"format": FORMAT, "settings": settings, "environment": describe_machine(), "rows": rows}


def _layer_work(job: Job) -> Callable[[], None]:
    """A function that runs a layer forward and backward on `tokens` random vectors, and drops the gradients."""
    torch.manual_seed(0)
    name = job["attention"]
    mixer = create_mixer(name, width=WIDTH, heads=HEADS, causal=describe_attention(name)["causal"])
    x = torch.randn(1, job["tokens"], WIDTH, requires_grad=True)
    toward = torch.randn(1, job["tokens"], WIDTH)
    return lambda: _forward_backward(mixer, x, toward)


def _forward_backward(mixer: nn.Module, x: torch.Tensor, toward: torch.Tensor) -> None:
    mixer(x).backward(toward)
    x.grad = None
    mixer.zero_grad(set_to_none=True)


def _warm_up(job: Job) -> None:
    """Do the same work on a few tokens."""
    _layer_work({**job, "tokens": 64})()


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve_memory_jobs(_warm_up, _layer_work)
