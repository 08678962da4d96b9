"""A small corpus of real text in a few files."""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def docs(tmp_path) -> Path:
    """A folder of twelve pages of the documentation; of so few files, parts are held out."""
    (tmp_path / "docs").mkdir()
    for path in sorted((ROOT / "docs").glob("*.md"))[:12]:
        shutil.copy(path, tmp_path / "docs")
    return tmp_path / "docs"
