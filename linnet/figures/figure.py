"""Figures: one data object, drawn by plotly inside an HTML page and by matplotlib as PNG, PDF or SVG.

Colors are those of Okabe and Ito, which color-blind readers can tell apart; markers differ as well.
"""

import html
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.errors import InputError, missing_extra_error_text
from linnet.storage import write_file_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = (  # of plotly, of matplotlib
    *(("circle", "o"), ("square", "s"), ("diamond", "D"), ("triangle-up", "^"), ("cross", "P"), ("x", "X")),
    *(("triangle-down", "v"), ("star", "*"), ("pentagon", "p"), ("triangle-left", "<"), ("hexagon", "h")),
    ("triangle-right", ">"),
)
DASHES = (("solid", "-"), ("dash", "--"), ("dot", ":"))  # for the first six series, the next six, ...
PNG = b"\x89PNG\r\n\x1a\n"  # how such a file begins
FORMATS: dict[str, dict[str, Any]] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}  # no times
STYLE: dict[Any, Any] = {"svg.hashsalt": "linnet", "pdf.fonttype": 42, "font.size": 9, "axes.titlesize": 10}
FEW = 25  # points of the longest line up to which each one gets a marker
CROWDED = 20  # letters along an axis beyond which they would touch
MANY = 5  # powers of ten along an axis, beyond which ticks at 2 and 5 would touch
LINE, LETTER = 0.07, 0.019  # height of a name and width of a letter, as shares of a panel
FIT = 14  # names that fill the height of a panel; more are drawn smaller
IN_A_ROW = 3  # panels of a picture
LARGEST = 900.0  # area of the largest circle, in square points


@dataclass(frozen=True)
class Series:
    """One line: y over x, None where there is no value; `low` and `high` bound each y.

    With `points` there are markers and no line. With `sizes` there are circles of these areas, scaled to the largest of
    the figure.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    points: bool = False
    sizes: Sequence[float] | None = None


@dataclass(frozen=True)
class Figure:
    """A chart, independent of what draws it."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    note: str = ""


def figure_to_plotly(figure: Figure) -> dict[str, Any]:
    """The figure as plotly's `data` and `layout`, plain JSON; the page adds fonts and its light or dark colors."""
    traces = [_trace(figure, i) for i in range(len(figure.series))]
    several = len(figure.series) > 1
    layout = {
        "xaxis": {"title": {"text": _escape(figure.x_label)}, **_axis(figure.log_x, _measured_at(figure))},
        "yaxis": {"title": {"text": _escape(figure.y_label)}, **_axis(figure.log_y, decades=_decades(figure))},
        "showlegend": several,
        "hovermode": "x unified" if several else "closest",
    }
    return {"data": traces, "layout": layout}


def _trace(figure: Figure, i: int) -> dict[str, Any]:
    """One line for plotly."""
    series, color = figure.series[i], COLORS[i % len(COLORS)]
    values = _drawable(figure, series)
    dash = DASHES[i // len(COLORS) % len(DASHES)][0]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers" if series.points else "lines+markers" if _few(figure) else "lines",
        "name": _escape(_shorten(series.name)),
        "x": list(series.x),
        "y": values,
        "line": {"color": color, "width": 2, "dash": dash},
        "marker": {"color": color, "size": 7, "symbol": MARKERS[i % len(MARKERS)][0]},
        "hovertemplate": "%{y:.4~g}" if len(figure.series) > 1 else "%{x:,}: %{y:.4~g}<extra></extra>",
    }
    if series.sizes is not None:
        scale = (LARGEST / max(max(s.sizes) for s in figure.series if s.sizes)) ** 0.5
        trace["mode"] = "markers"
        trace["marker"] = {"color": color, "opacity": 0.6, "size": [scale * size**0.5 for size in series.sizes]}
    if series.low is not None and series.high is not None:
        up = [0 if y is None else high - y for y, high in zip(values, series.high, strict=True)]
        down = [0 if y is None else y - low for y, low in zip(values, series.low, strict=True)]
        trace["error_y"] = {"type": "data", "array": up, "arrayminus": down, "thickness": 1, "width": 3}
    return trace


def _drawable(figure: Figure, series: Series) -> list[float | None]:
    """The values of a line, None where the axis cannot show one."""
    least = 0.0 if figure.log_y else -math.inf
    return [y if y is not None and least < y < math.inf else None for y in series.y]


def _shorten(name: str) -> str:
    """A name that fits beside a line or in a legend."""
    return name if len(name) <= 32 else f"{name[:31]}…"


def _escape(text: str) -> str:
    """Text for plotly, which reads some HTML."""
    return html.escape(text, quote=False)


def _few(figure: Figure) -> bool:
    """Whether the points of the lines can be told apart."""
    return max(len(series.x) for series in figure.series) <= FEW


def _axis(log: bool, ticks: Sequence[float] = (), decades: float = 0.0) -> dict[str, Any]:
    """An axis of plotly: logarithmic with ticks at `ticks`, or at 1 (and 2 and 5) of each decade; numbers in full.

    Over many decades there are ticks at some powers of ten alone.
    """
    if not log and _counted(ticks):
        return {"tickvals": list(ticks)}
    if not log:
        return {"tickformat": "~r" if not ticks else ",~g", "exponentformat": "power", "nticks": 6}
    if ticks:
        return {"type": "log", "tickvals": list(ticks), "ticktext": [f"{tick:,g}" for tick in ticks]}
    if decades > MANY:
        return {"type": "log", "dtick": math.ceil(decades / MANY), "exponentformat": "power"}
    return {"type": "log", "dtick": "D2", "tickformat": ",~g"}


def _decades(figure: Figure) -> float:
    """How many powers of ten the values of a logarithmic figure span."""
    values = [y for series in figure.series for y in _drawable(figure, series) if y is not None]
    return math.log10(max(values)) - math.log10(min(values)) if figure.log_y and values else 0.0


def _measured_at(figure: Figure) -> list[float]:
    """The x values, if they are few enough to be ticks; else nothing."""
    found = sorted({x for series in figure.series if series.sizes is None for x in series.x})
    return found if len(found) <= FEW // 2 else []


def _counted(values: Sequence[float]) -> bool:
    """Whether values are consecutive whole numbers, such as layers, with nothing in between."""
    return bool(values) and list(values) == [values[0] // 1 + i for i in range(len(values))]


def check_figure_path(path: str | Path) -> None:
    """Raise if no figure can be saved under this name."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path} ends in {path.suffix!r}: a figure is one of {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path.parent} is not a folder: a figure is saved in one that exists")


def check_figure_matplotlib() -> None:
    """Raise if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(f"a figure needs matplotlib: {missing_extra_error_text('report')}") from None


def save_figures(figures: Sequence[Figure], path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Draw the figures, three in a row at most, into a PNG, PDF or SVG file; a PNG carries `metadata` as text."""
    check_figure_path(path)
    check_figure_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    rows, columns = math.ceil(len(figures) / IN_A_ROW), min(len(figures), IN_A_ROW)
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(4.6 * columns, 3.6 * rows), layout="constrained", dpi=200)
        places = canvas.subplots(rows, columns, squeeze=False).ravel()
        for axes, figure in zip(places, figures, strict=False):
            _draw(axes, figure)
        for axes in places[len(figures) :]:
            axes.remove()
        notes = dict.fromkeys(figure.note for figure in figures if figure.note)
        canvas.supxlabel("\n".join(notes), fontsize=7, color="#555555", x=0.01, ha="left", parse_math=False)
        write_figure_canvas(canvas, path, metadata)


def write_figure_canvas(canvas: "Canvas", path: str | Path, metadata: Mapping[str, str] | None) -> None:
    """Write a matplotlib figure atomically; only a PNG carries `metadata`."""
    kind, written = Path(path).suffix.lower(), io.BytesIO()
    about = (metadata or {}) if kind == ".png" else FORMATS[kind]
    canvas.savefig(written, format=kind[1:], metadata=dict(about))
    write_file_atomic(path, written.getvalue())


def read_figure_metadata(path: str | Path) -> dict[str, str]:
    """The metadata of a PNG; empty if there is no such file, or if it is not a PNG."""
    try:
        data = Path(path).read_bytes()
    except OSError:
        return {}
    found, at = {}, len(PNG)
    while data.startswith(PNG) and at + 8 <= len(data):  # chunks: length, type, data, check sum
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind == b"tEXt":
            key, _, text = data[at + 8 : at + 8 + length].partition(b"\0")
            found[key.decode("latin-1")] = text.decode("latin-1")
        at += 12 + length
    return found


def _draw(axes: "Axes", figure: Figure) -> None:
    """One panel: lines with their names, a faint grid, no box."""
    for i, series in enumerate(figure.series):
        color, dash = COLORS[i % len(COLORS)], "none" if series.points else DASHES[i // len(COLORS) % len(DASHES)][1]
        marker = MARKERS[i % len(MARKERS)][1] if series.points or _few(figure) else ""
        y = [math.nan if value is None else value for value in _drawable(figure, series)]
        if series.sizes is not None:
            largest = max(max(s.sizes) for s in figure.series if s.sizes)
            areas = [LARGEST * size / largest for size in series.sizes]
            axes.scatter(series.x, y, areas, color=color, alpha=0.6, linewidth=0)
            continue
        label = _shorten(series.name) if len(series.x) else None  # a line without points has no place in a legend
        (line,) = axes.plot(series.x, y, color=color, linewidth=1.5, label=label)
        line.set(linestyle=dash, marker=marker, markersize=4)
        if series.low is not None and series.high is not None:
            axes.fill_between(series.x, series.low, series.high, color=color, alpha=0.15, linewidth=0)
    axes.set_title(figure.title, loc="left", fontweight="bold", parse_math=False)
    axes.set_xlabel(figure.x_label, parse_math=False)
    axes.set_ylabel(figure.y_label, parse_math=False)
    if figure.log_x:
        axes.set_xscale("log")
    if any(series.sizes for series in figure.series):
        axes.margins(0.25)
    if figure.log_y:
        axes.set_yscale("log")
    _ticks(axes, figure)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    if any(series.sizes for series in figure.series):
        _name_circles(axes, figure)
    elif len(figure.series) > len(COLORS):  # color alone no longer identifies a line
        size = min(1.0, FIT / len(figure.series)) * STYLE["font.size"]
        legend = axes.legend(
            loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, handlelength=3, fontsize=size
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    elif len(figure.series) > 1:
        _name_lines(axes, figure)


def _ticks(axes: "Axes", figure: Figure) -> None:
    """Numbers in full; on a logarithmic axis at the measured values, or at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))  # this many fit beside each other, even at 100,000
    for axis, log in ((axes.xaxis, figure.log_x), (axes.yaxis, figure.log_y)):
        if log:
            many = axis is axes.yaxis and _decades(figure) > MANY
            axis.set_major_locator(LogLocator(subs=(1,) if many else (1, 2, 5)))
            axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    measured = _measured_at(figure)
    if measured and (figure.log_x or _counted(measured)):
        axes.set_xticks(measured)
        if sum(len(f"{tick:,g}") for tick in measured) > CROWDED:
            axes.tick_params(axis="x", labelrotation=30)


def _name_lines(axes: "Axes", figure: Figure) -> None:
    """Each line's name at its end, in its color; names of lines that end close together are moved apart."""
    ends: list[tuple[float, int]] = []
    axes.get_ylim()  # matplotlib updates the limits only when asked
    for i, series in enumerate(figure.series):
        points = [(x, y) for x, y in zip(series.x, _drawable(figure, series), strict=True) if y is not None]
        if points:
            ends.append((axes.transAxes.inverted().transform(axes.transData.transform(points[-1]))[1], i))
    ends.sort()
    heights = [height for height, _ in ends]
    for _ in range(50):
        for j, (below, above) in enumerate(itertools.pairwise(heights)):
            overlap = max(0.0, LINE - (above - below))
            heights[j], heights[j + 1] = below - overlap / 2, above + overlap / 2
    for j in reversed(range(len(heights))):  # beside the panel, not above it
        heights[j] = min(heights[j], 1 - (len(heights) - 1 - j) * LINE)
    for height, (_, i) in zip(heights, ends, strict=True):
        name, color = _shorten(figure.series[i].name), COLORS[i % len(COLORS)]
        axes.text(1.02, height, name, transform=axes.transAxes, color=color, va="center", parse_math=False)


def _name_circles(axes: "Axes", figure: Figure) -> None:
    """Each circle's name in it; names that would touch are moved apart, with a line back to their circles."""
    axes.get_ylim()  # as for lines
    names, centers = [], []
    for series in figure.series:
        for x, y in zip(series.x, _drawable(figure, series), strict=True):
            if y is not None:
                names.append(_shorten(series.name))
                centers.append(axes.transAxes.inverted().transform(axes.transData.transform((x, y))))
    heights = [float(y) for _, y in centers]
    order = sorted(range(len(names)), key=heights.__getitem__)
    near = [
        (a, b)
        for a, b in itertools.combinations(order, 2)
        if abs(centers[a][0] - centers[b][0]) < LETTER * (len(names[a]) + len(names[b])) / 2
    ]
    for _ in range(50):
        for below, above in near:
            overlap = max(0.0, LINE - (heights[above] - heights[below]))
            heights[below], heights[above] = heights[below] - overlap / 2, heights[above] + overlap / 2
    for name, (x, y), height in zip(names, centers, heights, strict=True):
        axes.text(x, height, name, transform=axes.transAxes, ha="center", va="center", parse_math=False)
        if abs(height - y) > LINE:
            toward = height - math.copysign(LINE / 2, height - y)
            axes.plot([x, x], [y, toward], transform=axes.transAxes, color="#555555", linewidth=0.6)
