"""Tiny real runs: a text of a few thousand bytes, a model of a few thousand weights, a few steps."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.config import RunConfig, parse_config
from linnet.storage import checkpoint_steps

ROOT = Path(__file__).parent.parent.parent
PRESETS = {"masked_lm": "transnormer_t2_roberta_small"}  # of the others: a causal one
PAIRS = {"context": 12, "vocab_size": 9, "pairs": [1, 2]}


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def config(cache) -> Callable[..., RunConfig]:
    """`config("masked_lm", steps=9)`: a run with dropout, accumulation, evaluation and frequent checkpoints."""

    def make(task: str = "causal_lm", model: dict[str, object] | None = None, **train: object) -> RunConfig:
        text = {"corpus": "text", "path": str(ROOT / "CONTRIBUTING.md"), "tokenizer": "bytes", "context": 24}
        data = PAIRS if task == "recall" else {**text, "cache": str(cache)}
        preset = PRESETS.get(task, "transnormer_t2_lm_small")
        small = {"preset": preset, "layers": ["diag", "norm"], "width": 16, "heads": 2, "ffn_width": 24}
        usual = {"steps": 6, "batch": 2, "accumulate": 2, "lr": 1e-2, "warmup": 2, "threads": 1}
        every = {"eval_every": 3, "eval_batches": 2, "save_every": 2, "log_every": 4}
        return parse_config(
            {
                "task": task,
                "data": data,
                "model": {**small, "dropout": 0.2, **(model or {})},
                "train": {**usual, **every, **train},
            }
        )

    return make


@pytest.fixture
def last() -> Callable[[Path], dict[str, bytes]]:
    """`last(folder)`: the bytes of the newest checkpoint of a run, and of its metrics."""

    def read(folder: Path) -> dict[str, bytes]:
        path = folder / f"checkpoints/step-{checkpoint_steps(folder / 'checkpoints')[-1]}"
        return {file.name: file.read_bytes() for file in [*sorted(path.iterdir()), folder / "metrics.jsonl"]}

    return read


@pytest.fixture
def own_text(config, tmp_path):
    """A configuration with the test's own text file, my.txt."""

    def make(**train: object) -> RunConfig:
        shutil.copy(config().data.path, tmp_path / "my.txt")
        data = config().data.model_copy(update={"path": str(tmp_path / "my.txt")})
        return config(**train).model_copy(update={"data": data})

    return make
