"""One tiny trained run that the commands work on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.cli.app import run_app as linnet


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
