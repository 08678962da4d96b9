"""A small real run, and copies of it to damage."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.cli.app import run_app as linnet
from linnet.storage import write_json_file

ROOT = Path(__file__).parent.parent.parent
RECIPE = f"""
[data]
corpus = "text"
path = "{ROOT / "CONTRIBUTING.md"}"
tokenizer = "bytes"
context = 32
[model]
preset = "transnormer_t2_lm_small"
layers = ["diag", "norm"]
width = 16
heads = 2
ffn_width = 24
[train]
steps = 10
batch = 4
eval_every = 5
eval_batches = 2
log_every = 2
threads = 1
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """The folder of a finished run with generated text."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny.toml").write_text(RECIPE)
    assert linnet(["train", str(folder / "tiny.toml"), "--out", str(folder / "tiny"), "--json"]) == 0
    write_json_file(folder / "tiny" / "sample.json", {"prompt": "Each ", "text": "Each target", "temperature": 0.5})
    return folder / "tiny"


@pytest.fixture
def copy(trained, tmp_path) -> Callable[[str], Path]:
    """`copy("name")` returns a copy of the run under another name."""
    return lambda name: Path(shutil.copytree(trained, tmp_path / name))
