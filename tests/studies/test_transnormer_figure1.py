"""Figure 1: accuracy, speed and memory as circles, drawn from the records of Tables 6 and 7."""

import pytest

from linnet.errors import LinnetError
from linnet.figures.figure import figure_to_plotly, save_figures
from linnet.studies.transnormer_figure1 import figure1_circles


def test_circles_compare_systems_on_the_tasks_that_all_of_them_have(scores, speeds):
    figure = figure1_circles(scores[:-1], speeds, 2048)  # vanilla has no listops yet
    assert {series.name: list(series.y) for series in figure.series} == {"T2": [pytest.approx(55)], "vanilla": [30.0]}
    assert figure.y_label == "test accuracy, % (text)"
    with pytest.raises(LinnetError, match="no systems with a task in common"):
        figure1_circles([scores[2], scores[3]], speeds, 2048)


def test_circles_hold_score_speed_and_memory(scores, speeds):
    figure = figure1_circles(scores, speeds, 2048)
    found = {series.name: (series.x, series.y, series.sizes) for series in figure.series}
    assert found["T2"] == ([5.0], [47.5], [1_000_000])
    assert found["vanilla"] == ([1.0], [25.0], [4_000_000])
    traces = {trace["name"]: trace for trace in figure_to_plotly(figure)["data"] if "marker" in trace}
    small, large = (traces[name]["marker"]["size"][0] for name in ("T2", "vanilla"))
    assert large / small == pytest.approx(2)  # areas are as 4 to 1
    with pytest.raises(LinnetError, match="no row of 4,096 tokens"):
        figure1_circles(scores, speeds, 4096)


def test_the_figure_can_be_drawn(scores, speeds, tmp_path):
    save_figures([figure1_circles(scores, speeds, 1024)], tmp_path / "circles.png")
    assert (tmp_path / "circles.png").read_bytes()[:4] == b"\x89PNG"
