"""The cost of a layer: tables and figures say what was measured; the committed picture is of the committed numbers."""

import copy
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from linnet.analysis.costs import DIGEST, cost_figures, cost_note, cost_tables, draw_cost, save_cost
from linnet.errors import InputError

DOCUMENTED = Path(__file__).parent.parent.parent / "docs" / "figures" / "cost.json"
ROW = {"tokens": 512, "low": 0.1, "high": 0.9, "others": 0.0}
COST = {
    "format": "linnet-bench-layer-1",
    "settings": {"width": 8, "heads": 2, "batch": 1, "rounds": 3, "type": "float32"},
    "environment": {"torch": "2", "threads": 3, "cores": 4, "machine": "m"},
    "rows": [
        {**ROW, "attention": "softmax", "seconds": 0.3, "memory": 2**20},
        {**ROW, "attention": "norm", "seconds": 0.1, "memory": 3 * 2**20},
        {**ROW, "attention": "lln", "seconds": 0.6, "memory": 2**19},
        {**ROW, "attention": "norm", "tokens": 1024, "seconds": 0.2, "memory": 2**20},
    ],
}


def test_tables_say_what_it_is_against_softmax():
    time, memory = cost_tables(COST)
    assert time.columns == ["tokens", "softmax", "norm", "lln"]
    assert time.rows == [["512", "300 ms", "100 ms (3x faster)", "600 ms (2x slower)"], ["1,024", "", "200 ms", ""]]
    assert memory.rows[0] == ["512", "1 MiB", "3 MiB (3x more)", "0.5 MiB (2x less)"]


def test_figures_hold_every_number(cost):
    time, memory = cost_figures(cost)
    rows = [row for row in cost["rows"] if row["attention"] == "diag"]
    assert [series.name for series in time.series] == ["softmax", "diag"]
    assert list(time.series[1].y) == [1000 * row["seconds"] for row in rows]
    assert list(memory.series[1].y) == [row["memory"] / 2**20 for row in rows]
    assert list(memory.series[1].x) == [32, 64]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (0.1, None),
        (None, None),
        (1.0, "Other programs kept up to 1.0 of 4 cores busy."),
        (1.3, "Other programs kept up to 1.3 of 4 cores busy, more than were free: on a quiet machine the times are"),
    ],
)
def test_a_disturbed_measurement_says_so(others, said):
    disturbed = copy.deepcopy(COST)
    disturbed["rows"][2]["others"] = others
    assert (said or "") in cost_note(disturbed)
    assert ("busy" in cost_note(disturbed)) == (said is not None)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        [],
        None,
        {**COST, "format": "other"},
        {**COST, "rows": [{"attention": "norm"}]},
        {**COST, "rows": [{**COST["rows"][0], "seconds": "1"}]},
        {**COST, "rows": [{**COST["rows"][0], "others": "all"}]},
        {**COST, "environment": {}},
    ],
)
def test_what_is_no_measurement_is_one_line(broken):
    with pytest.raises(InputError, match="not a measurement"):
        cost_figures(broken)


def test_picture_and_numbers_are_saved_together(cost, tmp_path):
    picture, numbers = save_cost(cost, tmp_path / "c.png")
    assert json.loads(numbers.read_text())["rows"] == cost["rows"]
    assert Image.open(picture).text[DIGEST] == hashlib.sha256(numbers.read_bytes()).hexdigest()


def test_the_committed_picture_is_drawn_from_the_committed_numbers(tmp_path):
    picture = Image.open(DOCUMENTED.with_suffix(".png"))
    assert picture.text[DIGEST] == hashlib.sha256(DOCUMENTED.read_bytes()).hexdigest()
    draw_cost(DOCUMENTED, tmp_path / "again.png")
    pictures = (picture, Image.open(tmp_path / "again.png"))
    shown, again = (np.asarray(image.convert("L"), dtype=float) for image in pictures)
    assert shown.shape == again.shape
    assert np.abs(shown - again).mean() < 1  # of 255: another version of matplotlib may smooth letters otherwise
    measured = json.loads(DOCUMENTED.read_text())
    assert measured["command"].startswith("linnet bench layer --out docs/figures/cost.png")
    assert {row["attention"] for row in measured["rows"]} == {"softmax", "norm", "diag", "lln"}
