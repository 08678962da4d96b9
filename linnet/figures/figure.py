"""Figures: one data object, drawn by plotly inside an HTML page and by matplotlib as PNG, PDF or SVG."""

import html
import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.errors import InputError, missing_extra_error_text
from linnet.figures.colors import DASHES, FAINT, GUIDE, MARKERS, Look, figure_colors
from linnet.figures.names import draw_named_rulers, name_circles, name_line_ends, shorten_name
from linnet.storage import write_file_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.legend import Legend

PNG = b"\x89PNG\r\n\x1a\n"  # how such a file begins
FORMATS: dict[str, dict[str, Any]] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}  # no times
STYLE: dict[Any, Any] = {"svg.hashsalt": "linnet", "pdf.fonttype": 42, "font.size": 9, "axes.titlesize": 10}
FEW = 25  # points of the longest line up to which every point gets a marker
CROWDED = 20  # letters that fit along an axis; more would touch
MANY = 5  # powers of ten along an axis up to which ticks at 2 and 5 fit
FIT = 14  # names that fill the height of a panel; more are drawn smaller
NOTE_WIDTH = 80  # characters that fit under one panel
WIDTH, LEGEND = 4.6, 1.7  # inches of a panel, and of a legend beside a single one
IN_A_ROW = 3  # panels of a figure
LARGEST = 150.0  # area of the largest circle, in square points
BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5), "frameon": False}  # a panel's legend
APART = 1.4  # a guide starts this factor away from all lines
GUIDES = {1: "∝ N", 2: "∝ N²", -1: "∝ 1/N", -2: "∝ 1/N²"}  # by the exponent


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
    """A chart, independent of what draws it.

    `behind` holds lines that are drawn faintly and without a name, for comparison. `guides` are exponents: a line of
    each slope, on logarithmic axes. `levels` are heights with names, such as that of chance. `size_unit` is the unit of
    the sizes of circles, and what to multiply them by. `x_names` are the names of 1, 2, ... on the x axis.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    note: str = ""
    behind: Sequence[Series] = ()
    guides: Sequence[int] = ()
    levels: Sequence[tuple[str, float]] = ()
    size_unit: tuple[str, float] = ("", 1.0)
    x_names: Sequence[str] = ()


def figure_to_plotly(figure: Figure) -> dict[str, Any]:
    """The figure as plotly's `data` and `layout`, plain JSON; the page adds fonts and its light or dark colors."""
    looks = figure_colors([series.name for series in figure.series])
    traces = [_plain_trace("", series.x, _drawable(figure, series), FAINT, "solid") for series in figure.behind]
    traces += [_trace(figure, series, look) for series, look in zip(figure.series, looks, strict=True)]
    traces += [_plain_trace(name, x, y, GUIDE, "dot") for name, x, y in _rulers(figure)]
    several = len(figure.series) > 1
    layout = {
        "xaxis": {"title": {"text": _escape(figure.x_label)}, **_x_axis(figure)},
        "yaxis": {"title": {"text": _escape(figure.y_label)}, **_axis(figure.log_y, decades=_decades(figure))},
        "showlegend": several,
        "hovermode": "x unified" if several else "closest",
    }
    return {"data": traces, "layout": layout}


def _plain_trace(name: str, x: Sequence[float], y: Sequence[float | None], color: str, dash: str) -> dict[str, Any]:
    """A thin line for plotly, without markers and outside the legend."""
    line = {"color": color, "width": 1, "dash": dash}
    trace = {"type": "scatter", "mode": "lines", "name": _escape(name), "x": list(x), "y": list(y), "line": line}
    return {**trace, "showlegend": False, "hoverinfo": "name" if name else "skip"}


def _rulers(figure: Figure) -> list[tuple[str, list[float], list[float]]]:
    """Name, x and y of the lines that are no measurements: guides, which start below all lines, and levels."""
    drawn = [*figure.series, *figure.behind]
    points = [(x, y) for line in drawn for x, y in zip(line.x, _drawable(figure, line), strict=True) if y is not None]
    if not points:
        return []
    (left, low), (right, high) = (tuple(pick(axis) for axis in zip(*points, strict=True)) for pick in (min, max))
    found = [(name, [left, right], [height, height]) for name, height in figure.levels]
    for power in figure.guides if left < right and low < high else ():
        start, end = (low / APART, high) if power > 0 else (high * APART, low)
        far = left * (end / start) ** (1 / power)  # where it leaves the panel
        x = [left, min(right, far)]
        found.append((GUIDES[power], x, [start * (at / left) ** power for at in x]))
    return found


def _trace(figure: Figure, series: Series, look: Look) -> dict[str, Any]:
    """One line for plotly."""
    color, values, dash = look.color, _drawable(figure, series), DASHES[look.dash][0]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers" if series.points else "lines+markers" if _few(figure) else "lines",
        "name": _escape(shorten_name(series.name)),
        "x": list(series.x),
        "y": values,
        "line": {"color": color, "width": 2, "dash": dash},
        "marker": {"color": color, "size": 7, "symbol": MARKERS[look.marker][0]},
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


def _escape(text: str) -> str:
    """Text for plotly, which reads some HTML."""
    return html.escape(text, quote=False)


def _few(figure: Figure) -> bool:
    """Whether there are so few points that each can have a marker."""
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
    return {"type": "log", "dtick": "D2" if not 0 < decades < 1 else "D1", "tickformat": ",~g"}


def _x_axis(figure: Figure) -> dict[str, Any]:
    """The x axis of plotly: of names, or of numbers."""
    if figure.x_names:
        return {"tickvals": [*range(1, len(figure.x_names) + 1)], "ticktext": [*map(_escape, figure.x_names)]}
    return _axis(figure.log_x, _measured_at(figure))


def _decades(figure: Figure) -> float:
    """How many powers of ten the values of a logarithmic figure span."""
    values = [y for series in (*figure.series, *figure.behind) for y in _drawable(figure, series) if y is not None]
    return math.log10(max(values)) - math.log10(min(values)) if figure.log_y and values else 0.0


def _measured_at(figure: Figure) -> list[float]:
    """The x values if they are few enough to be ticks, otherwise nothing."""
    found = sorted({x for series in figure.series if series.sizes is None for x in series.x})
    return found if len(found) <= FEW // 2 else []


def _counted(values: Sequence[float]) -> bool:
    """Whether values are consecutive whole numbers, such as layers, with nothing in between."""
    return bool(values) and list(values) == [values[0] // 1 + i for i in range(len(values))]


def check_figure_path(path: str | Path) -> None:
    """Raise if a figure cannot be saved under this name."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path} ends in {path.suffix!r}: a figure is one of {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path.parent} is not a folder: save the figure in an existing one")


def check_figure_matplotlib() -> None:
    """Raise if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(f"a figure needs matplotlib: {missing_extra_error_text('report')}") from None


def save_figures(figures: Sequence[Figure], path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Draw the figures, at most three per row, into a PNG, PDF or SVG file; a PNG carries `metadata` as text."""
    check_figure_path(path)
    check_figure_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    count = len(figures)
    columns = 2 if count > 2 and count % 2 == 0 and count % IN_A_ROW else min(count, IN_A_ROW)
    rows, named = math.ceil(count / columns), not _same_names(figures)
    width = WIDTH * columns + (LEGEND if named and any(len(figure.series) > FIT // 2 for figure in figures) else 0)
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(width, 3.6 * rows), layout="constrained", dpi=200)
        places = canvas.subplots(rows, columns, squeeze=False).ravel()
        for axes, figure in zip(places, figures, strict=False):
            _draw(axes, figure, named)
        if not named:
            known = {line.get_label(): line for axes in places for line in axes.get_lines()}
            shown = [known[name] for name in dict.fromkeys(_names(figures)) if name in known]
            form: dict[str, Any] = {"handles": shown, "frameon": False, "handlelength": 3}
            if count < len(places):  # in the room of a panel that is not there
                _legend(places[count].legend(loc="center left", **form))
            else:
                _legend(canvas.legend(loc="outside right center", **form))
        for axes in places[count:]:
            axes.set_axis_off()
        notes = dict.fromkeys(figure.note for figure in figures if figure.note)
        lines = [line for note in notes for line in textwrap.wrap(note, int(NOTE_WIDTH * width / WIDTH))]
        canvas.supxlabel("\n".join(lines), fontsize=7, color="#555555", x=0.01, ha="left", parse_math=False)
        write_figure_canvas(canvas, path, metadata)


def _names(figures: Sequence[Figure]) -> list[str]:
    """The names of all lines that are drawn."""
    return [shorten_name(series.name) for figure in figures for series in figure.series if len(series.x)]


def _same_names(figures: Sequence[Figure]) -> bool:
    """Whether one legend serves all panels: several panels, and most names occur in most of them."""
    names = _names(figures)
    return len(figures) > 1 and len(set(names)) > 1 and len(names) > len(set(names)) * len(figures) / 2


def _legend(legend: "Legend") -> None:
    """Show names as they are."""
    for text in legend.get_texts():
        text.set_parse_math(False)


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


def _draw(axes: "Axes", figure: Figure, named: bool = True) -> None:
    """One panel: lines with their names, a faint grid, no box."""
    lines = (*figure.series, *figure.behind)
    if figure.log_y and not any(y is not None for series in lines for y in _drawable(figure, series)):
        figure = replace(figure, log_y=False)  # matplotlib cannot draw an empty logarithmic axis
    for series in figure.behind:
        axes.plot(series.x, _plotted(figure, series), color=FAINT, linewidth=0.8)
    looks = figure_colors([series.name for series in figure.series])
    for series, look in zip(figure.series, looks, strict=True):
        color, dash = look.color, "none" if series.points else DASHES[look.dash][1]
        marker = MARKERS[look.marker][1] if series.points or _few(figure) else ""
        y = _plotted(figure, series)
        if series.sizes is not None:
            areas = [_area(figure, size) for size in series.sizes]
            axes.scatter(series.x, y, areas, color=(color, 0.3), edgecolors=color, linewidth=1)
            continue
        label = shorten_name(series.name) if len(series.x) else None  # a line without points has no place in a legend
        (line,) = axes.plot(series.x, y, color=color, linewidth=1.5, label=label)
        line.set(linestyle=dash, marker=marker, markersize=4)
        if series.low is not None and series.high is not None:
            axes.fill_between(series.x, series.low, series.high, color=color, alpha=0.15, linewidth=0)
    beside = named and len(figure.series) <= FIT // 2  # more names do not fit beside the ends of lines
    ends = draw_named_rulers(axes, _rulers(figure), beside)
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
        _name_sizes(axes, figure)
    elif named:
        _name_lines(axes, figure, looks, ends if beside else None)


def _name_lines(
    axes: "Axes", figure: Figure, looks: Sequence[Look], ends: list[tuple[float, float, str, str]] | None
) -> None:
    """The names of lines beside their ends, among those of `ends`, or in a legend beside the panel."""
    if ends is None:
        size = min(1.0, FIT / len(figure.series)) * STYLE["font.size"]
        _legend(axes.legend(**BESIDE, handlelength=3, fontsize=size))
    elif len(figure.series) + len(figure.behind) > 1:
        for series, look in zip(figure.series, looks, strict=True):
            points = [(x, y) for x, y in zip(series.x, _drawable(figure, series), strict=True) if y is not None]
            if points:
                ends.append((*points[-1], shorten_name(series.name), look.color))
        name_line_ends(axes, ends)


def _plotted(figure: Figure, series: Series) -> list[float]:
    """The values of a line for matplotlib."""
    return [math.nan if value is None else value for value in _drawable(figure, series)]


def _area(figure: Figure, size: float) -> float:
    """The area of a circle in square points."""
    return LARGEST * size / max(max(series.sizes) for series in figure.series if series.sizes)


def _name_sizes(axes: "Axes", figure: Figure) -> None:
    """The names of circles, and a key of their sizes."""
    circles = []
    for series in figure.series:
        points = zip(series.x, _drawable(figure, series), strict=True)
        circles += [(x, y, shorten_name(series.name)) for x, y in points if y is not None]
    name_circles(axes, circles)
    unit, scale = figure.size_unit
    if unit:
        largest = max(max(series.sizes) for series in figure.series if series.sizes) * scale
        step = 10 ** math.floor(math.log10(largest))
        most = largest // step
        for size in dict.fromkeys(step * math.ceil(part * most / 3) for part in (1, 2, 3)):
            axes.scatter([], [], _area(figure, size / scale), color=FAINT, edgecolors=GUIDE, label=f"{size:,g} {unit}")
        _legend(axes.legend(**BESIDE, labelspacing=1.2))


def _ticks(axes: "Axes", figure: Figure) -> None:
    """Numbers in full; on a logarithmic axis at the measured values, or at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))  # this many fit beside each other, even at 100,000
    for axis, log in ((axes.xaxis, figure.log_x), (axes.yaxis, figure.log_y)):
        if log:
            many = axis is axes.yaxis and _decades(figure) > MANY
            axis.set_major_locator(LogLocator(subs=(1,) if many else (1, 2, 5)))
            if axis is axes.yaxis and 0 < _decades(figure) < 1:  # too few of those
                axis.set_major_locator(MaxNLocator(nbins=6, steps=(1, 2, 2.5, 5, 10)))
            axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    measured = _measured_at(figure)
    if figure.x_names:
        axes.set_xticks(range(1, len(figure.x_names) + 1), figure.x_names, rotation=30)
    elif measured and (figure.log_x or _counted(measured)):
        axes.set_xticks(measured)
        if sum(len(f"{tick:,g}") for tick in measured) > CROWDED:
            axes.tick_params(axis="x", labelrotation=30)
