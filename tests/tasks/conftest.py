"""A real, tiny text and the configuration of a tiny run on it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from linnet.config import RunConfig, parse_config

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def config(tmp_path) -> Callable[..., RunConfig]:
    """`config("masked_lm", tokenizer="word")`: a run on the license text."""

    def make(task: str, **data: object) -> RunConfig:
        table = {"corpus": "text", "path": str(ROOT / "LICENSE"), "tokenizer": "bytes", "context": 16}
        table |= {"cache": str(tmp_path / "cache"), **data}
        return parse_config({"task": task, "seed": 5, "data": table, "train": {"batch": 3}})

    return make
