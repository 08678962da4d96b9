"""A small real run, and copies of it to damage."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.cli.app import run_app as linnet
from linnet.storage import write_json_file


@pytest.fixture(scope="session")
def trained(recipe, tmp_path_factory) -> Path:
    """The folder of a finished run with generated text."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert linnet(["train", str(recipe), "--out", str(folder), "--set", "train.log_every=2", "--json"]) == 0
    write_json_file(folder / "sample.json", {"prompt": "Each ", "text": "Each target", "temperature": 0.5})
    return folder


@pytest.fixture
def copy(trained, tmp_path) -> Callable[[str], Path]:
    """`copy("name")` returns a copy of the run under another name."""
    return lambda name: Path(shutil.copytree(trained, tmp_path / name))
