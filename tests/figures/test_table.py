"""The table: Markdown aligns words left and numbers right, and no cell breaks a row."""

import re
from pathlib import Path

from linnet.figures.table import Table

PACKAGE = Path(__file__).parents[2] / "linnet"


def test_the_first_column_is_words_and_the_others_are_numbers():
    table = Table("speed", ["system", "steps"], [["T2", "5"], ["vanilla", "1"]])
    assert table.to_markdown().splitlines() == ["| system | steps |", "| --- | --: |", "| T2 | 5 |", "| vanilla | 1 |"]


def test_columns_of_words_can_be_named():
    table = Table("", ["what", "bound", "verdict"], [], ("what", "verdict"))
    assert table.to_markdown().splitlines()[1] == "| --- | --: | --- |"


def test_a_bar_in_a_cell_does_not_end_it():
    assert Table("", ["a"], [["|x|"]]).to_markdown().splitlines()[2] == "| \\|x\\| |"


def test_nobody_else_writes_a_table_by_hand():
    written = re.compile(r"\| ?---|--:")
    found = [path.name for path in PACKAGE.rglob("*.py") if written.search(path.read_text())]
    assert found == ["table.py"]
