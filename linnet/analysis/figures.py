"""Figures: one data object, drawn by plotly inside an HTML page and by matplotlib as PNG, PDF or SVG.

Colors are those of Okabe and Ito, which color-blind readers can tell apart; markers differ as well.
"""

import html
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.errors import InputError
from linnet.storage import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = (("circle", "o"), ("square", "s"), ("diamond", "D"), ("triangle-up", "^"), ("cross", "P"), ("x", "X"))
DASHES = (("solid", "-"), ("dash", "--"), ("dot", ":"))  # of the first six series, of the next six, ...
FORMATS = ("png", "pdf", "svg")
FEW = 25  # points up to which each one gets a marker


@dataclass(frozen=True)
class Series:
    """One line: y over x, None where there is no value; `low` and `high` bound each y."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


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


def to_plotly(figure: Figure) -> dict[str, Any]:
    """The figure as plotly's `data` and `layout`, plain JSON; the page adds fonts and its light or dark colors."""
    traces = [_trace(figure, i) for i in range(len(figure.series))]
    several = len(figure.series) > 1
    layout = {
        "xaxis": {"title": {"text": html.escape(figure.x_label)}, **_axis(figure.log_x, _every_x(figure))},
        "yaxis": {"title": {"text": html.escape(figure.y_label)}, **_axis(figure.log_y)},
        "showlegend": several,
        "hovermode": "x unified" if several else "closest",
    }
    return {"data": traces, "layout": layout}


def _trace(figure: Figure, i: int) -> dict[str, Any]:
    """One line for plotly, which reads names as HTML: they are escaped once here, and once more by the page."""
    series, color = figure.series[i], COLORS[i % len(COLORS)]
    dash = DASHES[i // len(COLORS) % len(DASHES)][0]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if len(series.x) <= FEW else "lines",
        "name": html.escape(series.name),
        "x": list(series.x),
        "y": [y if y is not None and math.isfinite(y) else None for y in series.y],
        "line": {"color": color, "width": 2, "dash": dash},
        "marker": {"color": color, "size": 7, "symbol": MARKERS[i % len(MARKERS)][0]},
        "hovertemplate": "%{y:.4~g}" if len(figure.series) > 1 else "%{x:,}: %{y:.4~g}<extra></extra>",
    }
    if series.low is not None and series.high is not None:
        up = [0 if y is None else high - y for y, high in zip(series.y, series.high, strict=True)]
        down = [0 if y is None else y - low for y, low in zip(series.y, series.low, strict=True)]
        trace["error_y"] = {"type": "data", "array": up, "arrayminus": down, "thickness": 1, "width": 3}
    return trace


def _axis(log: bool, ticks: Sequence[float] = ()) -> dict[str, Any]:
    """An axis of plotly: logarithmic with ticks at `ticks`, or at 1 (and 2 and 5) of each decade; numbers in full."""
    if not log:
        return {"tickformat": "~r" if not ticks else ",~g", "exponentformat": "power", "nticks": 6}
    if ticks:
        return {"type": "log", "tickvals": list(ticks), "ticktext": [f"{tick:,g}" for tick in ticks]}
    return {"type": "log", "dtick": "D2", "tickformat": ",~g"}


def _every_x(figure: Figure) -> list[float]:
    """The few values at which something was measured, or nothing."""
    found = sorted({x for series in figure.series for x in series.x})
    return found if len(found) <= FEW // 2 else []


def save_figures(figures: Sequence[Figure], path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Draw the figures side by side into a PNG, PDF or SVG file; `metadata` goes into it as text (PNG)."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise InputError(f"{path} ends in {path.suffix or 'nothing'!r}: a figure is a .{', .'.join(FORMATS)} file")
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise InputError("a figure needs matplotlib: pip install 'linnet[report]'") from None
    with matplotlib.rc_context({"svg.hashsalt": "linnet", "pdf.fonttype": 42, "font.size": 9, "axes.titlesize": 10}):
        canvas = Canvas(figsize=(4.6 * len(figures), 3.4), layout="constrained", dpi=200)
        for axes, figure in zip(canvas.subplots(1, len(figures), squeeze=False)[0], figures, strict=True):
            _draw(axes, figure)
        notes = "\n".join(dict.fromkeys(figure.note for figure in figures if figure.note))
        canvas.supxlabel(notes, fontsize=7, color="#555555", x=0.01, ha="left", parse_math=False)
        written = io.BytesIO()
        dates: dict[str, None] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]  # type: ignore[assignment]
        canvas.savefig(written, format=kind, metadata={**dates, **(metadata or {} if kind == "png" else {})})
    write_atomic(path, written.getvalue())


def _draw(axes: "Axes", figure: Figure) -> None:
    """One panel: lines with their names at their ends, a faint grid, no box."""
    for i, series in enumerate(figure.series):
        y = [math.nan if value is None else value for value in series.y]
        color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)][1] if len(series.x) <= FEW else ""
        dash = DASHES[i // len(COLORS) % len(DASHES)][1]
        axes.plot(series.x, y, color=color, linestyle=dash, marker=marker, markersize=4, linewidth=1.5)
        if series.low is not None and series.high is not None:
            axes.fill_between(series.x, series.low, series.high, color=color, alpha=0.15, linewidth=0)
    axes.set_title(figure.title, loc="left", fontweight="bold", parse_math=False)
    axes.set_xlabel(figure.x_label, parse_math=False)
    axes.set_ylabel(figure.y_label, parse_math=False)
    for log, scale, axis in ((figure.log_x, axes.set_xscale, axes.xaxis), (figure.log_y, axes.set_yscale, axes.yaxis)):
        if log:
            scale("log")
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    if figure.log_x and _every_x(figure):
        axes.set_xticks(_every_x(figure))
        axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    if len(figure.series) > 1:
        _name_lines(axes, figure)


def _name_lines(axes: "Axes", figure: Figure) -> None:
    """Each line's name at its end, in its color, moved apart where lines end close together."""
    ends = []
    for i, series in enumerate(figure.series):
        last = next(((x, y) for x, y in zip(reversed(series.x), reversed(series.y), strict=True) if y is not None), None)
        if last is not None:
            height = axes.transAxes.inverted().transform(axes.transData.transform(last))[1]
            ends.append([height, i])
    ends.sort()
    for below, here in zip(ends, ends[1:], strict=False):
        here[0] = max(here[0], below[0] + 0.07)
    for height, i in ends:
        name, color = figure.series[i].name, COLORS[i % len(COLORS)]
        axes.annotate(
            name, (1.02, height), xycoords="axes fraction", color=color, va="center", parse_math=False
        )
