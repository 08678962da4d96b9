"""The memory that a dry run estimates, beside what one process and each of two ranks really need."""

import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

from linnet.bench.memory import ALLOCATOR
from linnet.config import parse_config
from linnet.screen import Screen
from linnet.train.dry_run import dry_run

ROOT = Path(__file__).parent.parent.parent
FACTOR = 1.25  # between the estimate and the growth of a process that trains, either way
REAL = r"""
import gc, json, re, sys
from pathlib import Path
from linnet.config import parse_config
from linnet.distributed.ranks import launched_ranks
from linnet.distributed.spread import own_part
from linnet.screen import Screen
from linnet.train.fresh import absolute_fresh_config, fresh_config
from linnet.train.loop import Trainer
from linnet.train.run import Run

def resident(name):
    return int(re.search(name + r":\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def trainer(table, batch):
    table = {**table, "train": {**table["train"], "batch": batch}}
    run = Run(fresh_config(absolute_fresh_config(parse_config(table))), Path(sys.argv[2]), Screen(quiet=True))
    run.check()
    return Trainer(run.config, run.task, run.model, Path(sys.argv[2]), {}, run.ranks)

def bytes_of(tensors):
    return sum(own_part(tensor).nbytes for tensor in tensors)

found, ranks = [], launched_ranks()
for table in json.loads(Path(sys.argv[1]).read_text()):
    trainer(table, ranks.world)._update()  # loads what the first update loads
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = resident("VmRSS")
    real = trainer(table, table["train"]["batch"])
    for _ in range(2):  # the first one makes the optimizer's state
        real._update()
    peak = resident("VmHWM") - before
    states = [state[name] for state in real.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    parameters = list(real.model.parameters())
    found.append({
        "parameters": bytes_of([*parameters, *real.model.buffers()]),
        "gradients": bytes_of([parameter.grad for parameter in parameters]),
        "optimizer": bytes_of(states),
        "peak": peak,
    })
    del real, parameters, states
all_of_them = ranks.share(json.dumps(found))
if ranks.first:
    print(json.dumps([json.loads(text) for text in all_of_them]))
ranks.leave()
"""


def plan_and_measure(folder, batch, width, spreads):
    """What dry runs plan for a rank, and what each rank of a launch measured, by rank and by element of `spreads`."""
    text = {"corpus": "text", "path": str(ROOT / "CONTRIBUTING.md"), "tokenizer": "bytes", "context": 256}
    model = {"preset": "transnormer_t2_lm_small", "layers": ["diag", "norm"], "width": width, "heads": 2}
    train = {"steps": 2, "batch": batch, "lr": 1e-3, "warmup": 1, "threads": 1}
    base = {"task": "causal_lm", "data": {**text, "cache": str(folder / "cache")}, "model": model, "train": train}
    configs = [base if spread is None else {**base, "distributed": spread} for spread in spreads]
    (folder / "config.json").write_text(json.dumps(configs))
    world = 1 if spreads[0] is None else prod(spreads[0]["mesh"].values())
    program = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)] if world > 1 else []
    (folder / "real.py").write_text(REAL)
    command = [sys.executable, *program, str(folder / "real.py"), str(folder / "config.json"), str(folder / "run")]
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LINNET_BACKEND": "torch", **ALLOCATOR}
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    planned = [dry_run(parse_config(config), Screen(quiet=True))["memory"] for config in configs]
    return planned, json.loads(done.stdout)


def check_estimate(planned, real, first=True):
    """The counts are those of the first rank, which has most, and a process grows by about the estimate."""
    for name in ("parameters", "gradients", "optimizer"):
        assert real[name] == planned[name] if first else 0.99 * planned[name] < real[name] <= planned[name], name
    assert planned["activations"] > 40 * 2**20  # beside which other things are small
    assert 1 / FACTOR <= real["peak"] / planned["total"] <= FACTOR, (planned, real)


LINUX = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="only Linux says how much memory was used"
)


@LINUX
def test_the_estimate_is_what_an_update_needs(tmp_path):
    planned, real = plan_and_measure(tmp_path, 32, 128, [None])
    check_estimate(planned[0], real[0][0])


@LINUX
def test_the_estimate_is_what_an_update_of_each_of_two_ranks_needs(tmp_path):
    """Copies, parts and cut sequences, of a model whose weights are a large part."""
    spreads = [
        {"strategy": "ddp", "mesh": {"replicate": 2}},
        {"strategy": "fsdp", "mesh": {"shard": 2}},
        {"strategy": "fsdp", "mesh": {"sequence": 2}, "activation_checkpointing": True},
    ]
    planned, real = plan_and_measure(tmp_path, 8, 512, spreads)
    for rank, found in enumerate(real):
        for plan, measured in zip(planned, found, strict=True):
            check_estimate(plan, measured, rank == 0)
