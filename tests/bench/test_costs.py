"""The cost of a layer: tables and figures show the measured numbers."""

import copy

import pytest

from linnet.bench.costs import layer_cost_figures, layer_cost_note, layer_cost_tables
from linnet.errors import InputError

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


def test_tables_give_ratios_to_softmax():
    time, memory = layer_cost_tables(COST)
    assert time.columns == ["tokens", "softmax", "norm", "lln"]
    assert time.rows == [["512", "300 ms", "100 ms (3x faster)", "600 ms (2x slower)"], ["1,024", "", "200 ms", ""]]
    assert memory.rows[0] == ["512", "1 MiB", "3 MiB (3x more)", "0.5 MiB (2x less)"]


def test_figures_hold_every_number(cost):
    time, memory = layer_cost_figures(cost)
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
    assert (said or "") in layer_cost_note(disturbed)
    assert ("busy" in layer_cost_note(disturbed)) == (said is not None)


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
def test_anything_but_a_measurement_is_one_line(broken):
    with pytest.raises(InputError, match="not a measurement"):
        layer_cost_figures(broken)
