"""The memory that a dry run estimates, beside what one process really needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from linnet.config import parse_config
from linnet.screen import Screen
from linnet.train.dry_run import dry_run

ROOT = Path(__file__).parent.parent.parent
FACTOR = 1.5  # between the estimate and the growth of the process during an update, either way
REAL = r"""
import json, re, sys
from pathlib import Path
from linnet.config import parse_config
from linnet.screen import Screen
from linnet.train.fresh import absolute_fresh_config, fresh_config
from linnet.train.loop import Trainer
from linnet.train.run import Run

def resident(name):
    return int(re.search(name + r":\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def trainer(batch):
    table = json.loads(Path(sys.argv[1]).read_text())
    table["train"]["batch"] = batch
    run = Run(fresh_config(absolute_fresh_config(parse_config(table))), Path(sys.argv[2]), Screen(quiet=True))
    run.check()
    return Trainer(run.config, run.task, run.model, Path(sys.argv[2]), {})

trainer(1)._update()  # loads what the first update loads
real = trainer(json.loads(Path(sys.argv[1]).read_text())["train"]["batch"])
Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
before = resident("VmRSS")
real._update()
peak = resident("VmHWM") - before
bytes_of = lambda tensors: sum(tensor.nbytes for tensor in tensors)
states = [state[name] for state in real.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
parameters = list(real.model.parameters())
print(json.dumps({
    "parameters": bytes_of([*parameters, *real.model.buffers()]),
    "gradients": bytes_of([parameter.grad for parameter in parameters]),
    "optimizer": bytes_of(states),
    "peak": peak,
}))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux says how much memory was used")
def test_the_estimate_is_what_an_update_needs(tmp_path):
    text = {"corpus": "text", "path": str(ROOT / "CONTRIBUTING.md"), "tokenizer": "bytes", "context": 256}
    model = {"preset": "transnormer_t2_lm_small", "layers": ["diag", "norm"], "width": 128, "heads": 2}
    train = {"steps": 2, "batch": 32, "lr": 1e-3, "warmup": 1, "threads": 1}
    config = {"task": "causal_lm", "data": {**text, "cache": str(tmp_path / "cache")}, "model": model, "train": train}
    (tmp_path / "config.json").write_text(json.dumps(config))
    planned = dry_run(parse_config(config), Screen(quiet=True))["memory"]
    command = [sys.executable, "-c", REAL, str(tmp_path / "config.json"), str(tmp_path / "run")]
    torch_path = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LINNET_BACKEND": "torch"}
    done = subprocess.run(command, env=torch_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    real = json.loads(done.stdout)
    for name in ("parameters", "gradients", "optimizer"):
        assert planned[name] == real[name], name
    estimate = (
        planned["activations"] + planned["gradients"] + planned["optimizer"]
    )  # these are made in the first update
    assert planned["activations"] > 100 * 2**20  # beside which other things are small
    assert 1 / FACTOR <= real["peak"] / estimate <= FACTOR, (estimate, real)
