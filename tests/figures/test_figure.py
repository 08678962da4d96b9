"""Figures: both renderers draw the same data, with any text."""

import itertools
import json
import sys

import pytest
from matplotlib.figure import Figure as Canvas
from PIL import Image

from linnet.errors import InputError
from linnet.figures.colors import COLORS
from linnet.figures.figure import (
    Figure,
    Series,
    _draw,
    figure_to_plotly,
    read_figure_metadata,
    save_figures,
)
from linnet.figures.names import LINE

HOSTILE = "<script>alert(1)</script> $\\frac{ & _hidden </script> <a href='https://a.b'>"
LINES = [Series("a", [1, 10], [2.0, None]), Series(HOSTILE, [1, 10], [3.0, float("nan")], [2.0, 1.0], [4.0, 5.0])]
FIGURE = Figure(HOSTILE, "tokens", HOSTILE, LINES, log_x=True, log_y=True, note=HOSTILE)


@pytest.mark.parametrize("log", [False, True])
def test_plotly_accepts_every_property(log):
    from plotly.graph_objects import Figure as Checked

    figure = Figure("t", "x", "y", LINES, log_x=log, log_y=log)
    found = Checked(figure_to_plotly(figure))
    assert found.data[0].name == "a"
    assert found.layout.xaxis.title.text == "x"


def test_plotly_gets_no_markup_and_only_finite_numbers():
    plot = figure_to_plotly(FIGURE)
    text = json.dumps(plot, allow_nan=False)
    assert "<" not in text.replace("<extra></extra>", "")
    assert plot["data"][1]["y"] == [3.0, None]
    assert plot["data"][1]["name"].startswith("&lt;script&gt;alert(1)")
    assert plot["data"][1]["error_y"]["array"][0] == 1.0


@pytest.mark.parametrize("x,counted", [([0, 1, 2], True), ([3], True), ([0, 10, 20], False), ([0.5, 1.5], False)])
def test_nothing_lies_between_layers(x, counted):
    plot = figure_to_plotly(Figure("t", "layer", "y", [Series("a", x, x)]))
    assert plot["layout"]["xaxis"].get("tickvals") == (x if counted else None)


@pytest.mark.parametrize(("values", "dtick"), [([0.2, 3.0], "D2"), ([0.25, 5e10], 3), ([None, None], "D2")])
def test_ticks_of_many_decades_are_few(values, dtick, tmp_path):
    figure = Figure("t", "x", "y", [Series("a", [0, 1], values)], log_y=True)
    assert figure_to_plotly(figure)["layout"]["yaxis"]["dtick"] == dtick
    save_figures([figure], tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn.count('id="ytick_') <= 10


def test_large_numbers_have_room_beside_each_other(tmp_path):
    steps = range(500, 16_000, 500)
    save_figures([Figure("t", "step", "y", [Series("a", steps, steps)])], tmp_path / "a.svg")
    assert 3 <= (tmp_path / "a.svg").read_text().count('id="xtick_') <= 6


@pytest.mark.parametrize(("longest", "mode"), [(25, "lines+markers"), (26, "lines")])
def test_all_lines_of_a_figure_have_markers_or_none_has(longest, mode):
    lines = [Series("long", range(longest), range(longest)), Series("short", [0, 1], [0, 1])]
    assert [trace["mode"] for trace in figure_to_plotly(Figure("t", "x", "y", lines))["data"]] == [mode, mode]


def test_lines_differ_beyond_the_last_color():
    lines = [Series(str(i), [0, 1], [i, i]) for i in range(2 * len(COLORS))]
    looks = {(t["line"]["color"], t["line"]["dash"]) for t in figure_to_plotly(Figure("t", "x", "y", lines))["data"]}
    assert len(looks) == 2 * len(COLORS)


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_the_same_figure_is_the_same_file(tmp_path, suffix, start):
    for name in ("a", "b"):
        save_figures([FIGURE, FIGURE], tmp_path / f"{name}{suffix}", {"Key": "value"})
    first = (tmp_path / f"a{suffix}").read_bytes()
    assert first.startswith(start)
    assert first == (tmp_path / f"b{suffix}").read_bytes()
    if suffix == ".png":
        assert Image.open(tmp_path / "a.png").text["Key"] == "value"


def test_every_line_is_drawn_and_named(tmp_path):
    lines = [Series("first", [1, 2], [1, 2]), Series("second", [1, 2], [1, 2])]
    save_figures([Figure("t", "x", "y", lines)], tmp_path / "f.svg")
    drawn = (tmp_path / "f.svg").read_text()
    assert all(color in drawn for color in COLORS[:2])
    assert "first" in drawn
    assert "second" in drawn


def test_values_that_a_logarithmic_axis_cannot_show_are_gaps(tmp_path):
    figure = Figure("t", "x", "y", [Series("a", [1, 2], [0, 5]), Series("b", [1, 2], [-1, 0])], log_y=True)
    assert [trace["y"] for trace in figure_to_plotly(figure)["data"]] == [[None, 5], [None, None]]
    save_figures([figure], tmp_path / "f.png")


def test_an_empty_figure_is_drawn(tmp_path):
    save_figures([Figure("t", "x", "y", [Series("a", [], [])], log_y=True)], tmp_path / "f.png")
    assert figure_to_plotly(Figure("t", "x", "y", []))["data"] == []


@pytest.mark.parametrize("name", ["f.txt", "f", "missing/f.png"])
def test_a_file_that_cannot_be_is_one_line(tmp_path, name):
    with pytest.raises(InputError) as error:
        save_figures([FIGURE], tmp_path / name)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'linnet-attention\[report\]'"):
        save_figures([FIGURE], tmp_path / "f.png")


def test_names_of_circles_that_lie_on_each_other_stay_legible(tmp_path, recwarn):
    names = [f"system {i}" for i in range(8)]
    crowd = [Series(name, [2.0 + 0.01 * i], [38.0 + 0.01 * i], sizes=[i + 1]) for i, name in enumerate(names)]
    alone = Series("alone", [0.2], [40.0], sizes=[3])
    figure = Figure("Circles", "speed", "score", [*crowd, alone], log_x=True)
    axes = Canvas().subplots()
    _draw(axes, figure)
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert set(heights) == {*names, "alone"}
    among = sorted(heights[name] for name in names)
    assert min(above - below for below, above in itertools.pairwise(among)) > 0.9 * LINE
    center = axes.transAxes.inverted().transform(axes.transData.transform((0.2, 40.0)))
    assert heights["alone"] == pytest.approx(center[1])
    save_figures([figure], tmp_path / "circles.png")
    assert not recwarn.list


def test_metadata_is_read_from_png_files_only(tmp_path):
    save_figures([FIGURE], tmp_path / "a.png", {"linnet-study": "x", "other": "y"})
    found = read_figure_metadata(tmp_path / "a.png")
    assert (found["linnet-study"], found["other"]) == ("x", "y")
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    (tmp_path / "text.png").write_text("no image")
    assert read_figure_metadata(tmp_path / "cut.png") == read_figure_metadata(tmp_path / "text.png") == {}
    assert read_figure_metadata(tmp_path / "missing.png") == {}


def test_guides_and_levels_are_drawn_with_their_names_and_outside_the_legend(tmp_path):
    lines = [Series("a", [1, 10], [1.0, 100.0]), Series("b", [1, 10], [2.0, 20.0])]
    figure = Figure("t", "x", "y", lines, log_x=True, log_y=True, guides=(1, 2), levels=[("chance", 3.0)])
    traces = figure_to_plotly(figure)["data"]
    shown = [trace["name"] for trace in traces if trace.get("showlegend", True)]
    assert shown == ["a", "b"]
    chance, linear, square = (trace for trace in traces if trace["name"] not in ("a", "b"))
    assert chance["y"] == [3.0, 3.0]
    assert linear["y"][1] / linear["y"][0] == pytest.approx(linear["x"][1] / linear["x"][0])
    assert square["y"][1] / square["y"][0] == pytest.approx((square["x"][1] / square["x"][0]) ** 2)
    save_figures([figure], tmp_path / "f.svg")
    assert (tmp_path / "f.svg").read_text().count("chance") >= 1


def test_panels_with_the_same_names_share_one_legend(tmp_path):
    panel = Figure("t", "x", "y", [Series("first", [1, 2], [1, 2]), Series("second", [1, 2], [2, 1])])
    other = Figure("t", "x", "y", [Series("third", [1, 2], [1, 2])], behind=panel.series)
    for figures, times in (([panel, panel, panel], 1), ([panel, other], 1), ([panel], 1)):
        save_figures(figures, tmp_path / "f.svg")
        assert (tmp_path / "f.svg").read_text().count("<!-- first -->") == times


def test_the_names_of_falling_guides_stand_beside_the_panel_and_touch_no_line():
    rates = [Series("a", [1000, 2000, 5000], [50.0, 25.0, 10.0]), Series("b", [1000, 2000, 5000], [40.0, 10.0, 1.6])]
    figure = Figure("t", "tokens", "steps", rates, log_x=True, log_y=True, guides=(-1, -2))
    axes = Canvas().subplots()
    _draw(axes, figure)
    names = {text.get_text(): text.get_position() for text in axes.texts}
    assert set(names) == {"a", "b", "∝ 1/N", "∝ 1/N²"}
    assert all(x > 1 for x, _ in names.values())
    heights = sorted(y for _, y in names.values())
    assert min(above - below for below, above in itertools.pairwise(heights)) > 0.9 * LINE


@pytest.mark.parametrize("values", [[40.0, 270.0], [105.0, 210.0]])
def test_a_logarithmic_axis_of_less_than_a_decade_has_enough_ticks(values, tmp_path):
    figure = Figure("t", "x", "perplexity", [Series("a", [1, 2], values)], log_y=True)
    axes = Canvas().subplots()
    _draw(axes, figure)
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 3
    assert figure_to_plotly(figure)["layout"]["yaxis"]["dtick"] == "D1"


def test_values_of_an_axis_may_have_names():
    tasks = ["cola", "sst2"]
    figure = Figure("t", "task", "%", [Series("a", [1, 2], [3.0, 4.0], points=True)], x_names=tasks)
    axes = Canvas().subplots()
    _draw(axes, figure)
    assert [label.get_text() for label in axes.get_xticklabels()] == tasks
    assert figure_to_plotly(figure)["layout"]["xaxis"]["ticktext"] == tasks


def test_a_shared_legend_takes_the_room_of_a_missing_panel(tmp_path):
    """Five panels of six: the picture is as wide as three panels, and the sixth place holds the names."""
    panel = Figure("t", "x", "y", [Series("first", [1, 2], [1, 2]), Series("second", [1, 2], [2, 1])])
    save_figures([panel] * 5, tmp_path / "a.png")
    picture = Image.open(tmp_path / "a.png").convert("L")
    width, height = picture.size
    free = picture.crop((2 * width // 3 + 40, height // 2 + 60, width, height))
    beside = picture.crop((width - 60, 60, width, height // 3))  # the third panel reaches the right edge
    assert free.getextrema()[0] < 50 and beside.getextrema()[0] < 255


def test_circles_have_a_key_of_their_sizes():
    circles = [Series("a", [1.0], [1.0], sizes=[4e8]), Series("b", [2.0], [1.5], sizes=[2.1e9])]
    axes = Canvas().subplots()
    _draw(axes, Figure("t", "x", "y", circles, size_unit=("MB", 1e-6)))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["1,000 MB", "2,000 MB"]


def test_a_logarithmic_axis_without_a_positive_value_is_drawn(tmp_path):
    """As of memory that is too little to measure."""
    nothing = Figure("memory", "tokens", "MB", [Series("a", [64, 128], [0.0, 0.0])], log_x=True, log_y=True)
    save_figures([nothing], tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 0


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_a_long_note_ends_inside_the_picture(panels, tmp_path):
    note = "Widths and masses of many small models, MEASURED AGAIN on WikiText-2 " * 4
    save_figures([Figure("t", "x", "y", [Series("a", [0, 1], [1, 2])], note=note)] * panels, tmp_path / "a.png")
    picture = Image.open(tmp_path / "a.png").convert("L")
    edge = picture.crop((picture.width - 8, picture.height * 17 // 20, picture.width, picture.height))
    assert edge.getextrema() == (255, 255)
