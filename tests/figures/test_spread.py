"""The spread over seeds: one text for tables, one line for figures."""

import math

import pytest

from linnet.figures.spread import spread, spread_line, spread_text


def test_one_value_has_no_range_and_no_error():
    assert spread_text([1.5]) == "1.50"
    assert spread_text([]) == "-"
    assert math.isnan(spread([1.5]).error)


def test_several_values_have_a_range_and_may_be_counted():
    assert spread_text([1.0, 2.0, 3.0], 1) == "2.0 (1.0 to 3.0)"
    assert spread_text([1.0, 2.0], 1, "seeds") == "1.5 (1.0 to 2.0, 2 seeds)"
    assert spread([1.0, 2.0, 3.0]).error == pytest.approx(1 / math.sqrt(3))


def test_a_line_shades_the_range_of_several_values():
    line = spread_line("T2", {2: [3.0], 1: [1.0, 2.0]})
    assert (line.x, line.y, line.low, line.high) == ([1, 2], [1.5, 3.0], [1.0, 3.0], [2.0, 3.0])
    alone = spread_line("T2", {1: [1.0], 2: [3.0]})
    assert (alone.y, alone.low, alone.high) == ([1.0, 3.0], None, None)
