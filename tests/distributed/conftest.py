"""Real ranks: torchrun with two or four processes on this machine, and tiny runs for them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
TEXT = {"corpus": "text", "path": str(ROOT / "CONTRIBUTING.md"), "tokenizer": "bytes", "context": 32}
SMALL = {"layers": ["diag", "norm"], "width": 16, "heads": 2, "ffn_width": 24}
TRAIN = {"steps": 6, "batch": 8, "accumulate": 2, "lr": 1e-2, "eps": 1e-3, "warmup": 2, "threads": 1}
EVERY = {"eval_every": 3, "eval_batches": 3, "save_every": 2, "log_every": 1}
WORDS = ("good", "fine", "bad", "poor")


def environment() -> dict[str, str]:
    """One thread per process, and no trace of another torchrun."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def settings(tmp_path_factory) -> Callable[..., dict[str, Any]]:
    """`settings("masked_lm", strategy="ddp", steps=4)`: the configuration of a tiny run without dropout."""
    folder = tmp_path_factory.mktemp("data")
    table = folder / "table.tsv"
    rows = [f"a {WORDS[i % 4]} film {'again ' * (i % 5)}\t{('up', 'down')[i % 4 // 2]}" for i in range(60)]
    table.write_text("text\tlabel\n" + "\n".join(rows) + "\n")

    def make(task: str = "causal_lm", strategy: str | None = None, **train: Any) -> dict[str, Any]:
        more = {name: train.pop(name) for name in ("mesh", "activation_checkpointing") if name in train}
        presets = {"masked_lm": "transnormer_t2_roberta_small", "lra/listops": "transnormer_t2_lra"}
        data, pretrain = {**TEXT, "cache": str(folder / "cache")}, train.pop("pretrain", False)
        model: dict[str, Any] = {"preset": presets.get(task, "transnormer_t2_lm_small"), **SMALL, "dropout": 0.0}
        if task in ("masked_lm", "lra/listops"):  # whose presets drop attention weights; `classify` has its encoder's
            model["options"] = {"diag": {"dropout": 0.0}}
        if task == "lra/listops":
            data = {"context": 2000, "count": 60, "cache": str(folder / "cache")}
            train = {"accumulate": 1, "eval_batches": 1, "steps": 3, "eval_every": 3, **train}
        if task == "classify":
            data = {"path": str(table), "encoder": train.pop("encoder"), "context": 32}
            model = {}
        tables = {
            "task": task,
            "pretrain": pretrain,
            "data": data,
            "model": model,
            "train": {**TRAIN, **EVERY, **train},
        }
        return tables | ({"distributed": {"strategy": strategy, **more}} if strategy else {})

    return make


@pytest.fixture(scope="session")
def launch(tmp_path_factory) -> Callable[..., list[dict[str, Any]]]:
    """`launch(2, jobs)`: how each job ended on two ranks."""

    def start(world: int, jobs: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        file = tmp_path_factory.mktemp("jobs") / "jobs.json"
        file.write_text(json.dumps(jobs, default=str))
        command = [*TORCHRUN, "--nproc-per-node", str(world), "-m", "tests.distributed.jobs", str(file)]
        done = subprocess.run(
            command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr[-6000:]
        return [json.loads(line) for line in file.with_suffix(".out").read_text().splitlines()]

    return start
