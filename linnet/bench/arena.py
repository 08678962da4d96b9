"""Speed and memory of the Long Range Arena's models as sequences get longer: the shape of TransNormer's Table 7.

The paper does not state its batch. Here the models are those of the presets, on Text's vocabulary, and take turns.
"""

import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from linnet import __version__
from linnet.bench.timing import time_in_turns
from linnet.errors import LinnetError
from linnet.models.backbone import Model
from linnet.models.presets import preset

LENGTHS = (1024, 2048, 3072, 4096, 5120)
BATCH = 4
UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes


def measure_arena(
    systems: Mapping[str, str], tokens: int, rounds: int, progress: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Steps a second of each system (name to preset) at one length, in training and inference, and peak memory."""
    calls: dict[str, Callable[[], None]] = {}
    for name, model in systems.items():
        train, infer = steps(model, tokens)
        calls |= {f"training {name}": train, f"inference {name}": infer}
    timings = time_in_turns(calls, rounds, progress=progress)
    rows = []
    for name, model in systems.items():
        speed = {kind: float(f"{1 / timings[f'{kind} {name}'].seconds:.4g}") for kind in ("training", "inference")}
        rows.append({"row": name, "preset": model, **speed, "memory": peak_memory(model, tokens)})
    others = [timing.others for timing in timings.values() if timing.others is not None]
    return {
        "tokens": tokens,
        "batch": BATCH,
        "rounds": rounds,
        "others": max(others, default=None),  # cores that other programs kept busy meanwhile
        "environment": {
            "linnet": __version__,
            "torch": torch.__version__,
            "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "rows": rows,
    }


def steps(name: str, tokens: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """A step of training and one of inference, of a preset with a position for each token."""
    torch.manual_seed(0)
    model = Model(preset(name, max_length=tokens))
    optimizer = torch.optim.AdamW(model.parameters())
    ids, labels = torch.randint(257, (BATCH, tokens)), torch.randint(2, (BATCH,))

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


def peak_memory(name: str, tokens: int) -> int:
    """Bytes that a step of training needs at most, above what was there when it began; in a process of its own."""
    program = [sys.executable, "-P", "-m", "linnet.bench.arena", json.dumps([name, tokens])]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if not done.stdout.strip().isdecimal():
        raise LinnetError(f"no peak of {name} at {tokens} tokens: {' '.join(done.stderr.split())[-200:]}")
    return int(done.stdout)


def _tell_peak(name: str, tokens: int) -> None:
    """Print the growth of this process's largest size while it does one step."""
    torch.set_num_threads(1)
    steps(name, 64)[0]()
    work = steps(name, tokens)[0]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * UNIT)


if __name__ == "__main__":
    _tell_peak(*json.loads(sys.argv[1]))
