"""Names beside lines stay apart and inside the height of their panel."""

import itertools

import pytest
from matplotlib.figure import Figure as Canvas

from linnet.figures.names import LINE, name_line_ends


def test_a_name_that_is_moved_far_has_a_line_back_to_its_end():
    axes = Canvas().subplots()
    axes.set_ylim(0, 1)
    name_line_ends(axes, [(1.0, 0.5, "alone", "#000000")])
    assert not axes.lines
    name_line_ends(axes, [(1.0, 0.5, f"line {i}", "#000000") for i in range(4)])
    assert 2 <= len(axes.lines) <= 4
    assert all(line.get_ydata()[0] == pytest.approx(0.5) for line in axes.lines)


@pytest.mark.parametrize("height", [0.0, 0.5, 1.0])
def test_names_of_lines_that_end_together_stay_apart_beside_the_panel(height):
    axes = Canvas().subplots()
    axes.set_ylim(0, 1)
    name_line_ends(axes, [(1.0, height, f"line {i}", "#000000") for i in range(8)])
    heights = sorted(text.get_position()[1] for text in axes.texts)
    assert min(above - below for below, above in itertools.pairwise(heights)) > 0.9 * LINE
    assert heights[0] >= 0 and heights[-1] <= 1
