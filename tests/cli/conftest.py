"""One tiny trained run that the commands work on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.cli.app import run_app as linnet

ROOT = Path(__file__).parent.parent.parent
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


@pytest.fixture(scope="session")
def recipe(tmp_path_factory) -> Path:
    """A recipe file."""
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "tiny.toml").write_text(RECIPE.format(text=ROOT / "CONTRIBUTING.md", cache=folder / "cache"))
    return folder / "tiny.toml"


@pytest.fixture(scope="session")
def trained(recipe, tmp_path_factory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert linnet(["train", str(recipe), "--out", str(folder), "--json"]) == 0
    return folder


@pytest.fixture
def run(capfd) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in this process: (exit code, standard output, standard error)."""

    def call(*args: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = linnet([str(arg) for arg in args])
        return code, *capfd.readouterr()

    return call
