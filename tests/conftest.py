"""Shared by all tests: a fixed seed, deterministic algorithms, NaN in fresh memory, real data, a tiny recipe."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = True
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent
RECIPE = """
task = "causal_lm"
[data]
corpus = "text"
path = "{text}"
tokenizer = "bytes"
context = 32
cache = "{cache}"
[model]
preset = "transnormer_t2_lm_small"
layers = ["diag", "norm"]
width = 16
heads = 2
ffn_width = 24
[train]
steps = 10
batch = 4
lr = 1e-2
eval_every = 5
eval_batches = 2
save_every = 5
threads = 1
"""

settings.register_profile("linnet", deadline=None, derandomize=True, database=None)
settings.load_profile("linnet")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def data_dir() -> Callable[[str], Path]:
    """`data_dir("wikitext-2")` is the path of a data set, or of a file in it; if absent, the test is skipped."""

    def find(name: str) -> Path:
        root = os.environ.get("LINNET_DATA")
        if not root:
            pytest.skip(f"needs {name}: LINNET_DATA is not set")
        path = Path(root) / name
        if not path.exists():
            pytest.skip(f"needs {name}: it is not in LINNET_DATA ({root})")
        return path

    return find


@pytest.fixture(scope="session")
def cost() -> dict:
    """A real measurement of tiny lengths."""
    from linnet.bench.layer import measure_layer_costs

    return measure_layer_costs(["softmax", "diag"], lengths=(32, 64), rounds=1)


@pytest.fixture(scope="session")
def recipe(tmp_path_factory) -> Path:
    """The file of a tiny recipe, whose run takes a second."""
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "tiny.toml").write_text(RECIPE.format(text=ROOT / "CONTRIBUTING.md", cache=folder / "cache"))
    return folder / "tiny.toml"
