"""The cost of reading a long text with an encoder of Transformers: its softmax beside mechanisms in its place."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from linnet.bench.machine import describe_machine
from linnet.bench.memory import Job, peak_memory_server, serve_memory_jobs
from linnet.bench.timing import time_calls


def measure_encoder(
    folder: Path, systems: Sequence[str], tokens: int, rounds: int, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Seconds and peak memory of one forward pass over `tokens` tokens; the systems take turns.

    The weights are those of the original: what a conversion learns does not change the cost.
    """
    total, done = len(systems) * (rounds + 1), 0

    def advance() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    jobs = {name: {"folder": str(folder), "attention": name, "tokens": tokens} for name in systems}
    rows: list[dict[str, Any]] = []
    timings = time_calls({name: _reading(job) for name, job in jobs.items()}, rounds, progress=advance)
    with peak_memory_server("linnet.bench.encoder") as peak:
        for name, timing in timings.items():
            seconds, low, high = (float(f"{t:.4g}") for t in (timing.seconds, timing.low, timing.high))
            row = {"attention": name, "seconds": seconds, "low": low, "high": high, "others": timing.others}
            rows.append({**row, "memory": peak(jobs[name])})
            advance()
    settings = {"batch": 1, "rounds": rounds, "type": "float32"}
    return {"tokens": tokens, "settings": settings, "environment": describe_machine(), "rows": rows}


def _reading(job: Job) -> Callable[[], object]:
    """A forward pass over random tokens; positions are stretched where the model has fewer."""
    from linnet.hf.load import load
    from linnet.hf.patch import patch
    from linnet.hf.positions import stretch_positions

    model, tokens = load(job["folder"]), job["tokens"]
    if tokens > model.config.max_position_embeddings:
        stretch_positions(model, tokens)
    if job["attention"] != "softmax":
        patch(model, job["attention"])
    ids = torch.randint(model.config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def read() -> object:
        return model(input_ids=ids)

    return read


def _warm_up(job: Mapping[str, Any]) -> None:
    """The same work on a few tokens."""
    _reading({**job, "tokens": 64})()


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve_memory_jobs(_warm_up, _reading)
