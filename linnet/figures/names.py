"""Names of lines and circles, written beside them and moved apart where they would touch."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from linnet.figures.colors import GUIDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE, LETTER = 0.07, 0.019  # height of a name and width of a letter, as shares of a panel
ASIDE = 0.045  # from the center of a circle to its name


def name_line_ends(axes: "Axes", ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write each name beside the end (x, y) of its line, in its color, with a line back if it is moved far."""
    axes.get_ylim()  # matplotlib updates the limits only when asked
    order = sorted(ends, key=lambda end: _place(axes, *end[:2])[1])
    heights = [_place(axes, *end[:2])[1] for end in order]
    for _ in range(50):
        for j, (below, above) in enumerate(itertools.pairwise(heights)):
            overlap = max(0.0, LINE - (above - below))
            heights[j], heights[j + 1] = below - overlap / 2, above + overlap / 2
    for j in reversed(range(len(heights))):  # beside the panel, not above it
        heights[j] = min(heights[j], 1 - (len(heights) - 1 - j) * LINE)
    for j in range(len(heights)):  # nor below it
        heights[j] = max(heights[j], j * LINE)
    for height, (x, y, name, color) in zip(heights, order, strict=True):
        axes.text(1.04, height, name, transform=axes.transAxes, color=color, va="center", parse_math=False)
        right, end = _place(axes, x, y)
        if abs(height - end) > LINE / 2:
            way = [right + 0.01, 1.03], [end, height]
            axes.plot(*way, transform=axes.transAxes, color=color, linewidth=0.6, clip_on=False)


def name_circles(axes: "Axes", circles: Sequence[tuple[float, float, str]]) -> None:
    """Write each name right of its circle around (x, y); those that would touch are moved apart, with a line back."""
    axes.get_ylim()  # as for lines
    names = [name for _, _, name in circles]
    centers = [_place(axes, x, y) for x, y, _ in circles]
    heights = [y for _, y in centers]
    order = sorted(range(len(names)), key=heights.__getitem__)
    widths = [LETTER * len(name) for name in names]
    near = [
        (a, b)
        for a, b in itertools.combinations(order, 2)
        if centers[a][0] < centers[b][0] + widths[b] and centers[b][0] < centers[a][0] + widths[a]
    ]
    for _ in range(50):
        for below, above in near:
            overlap = max(0.0, LINE - (heights[above] - heights[below]))
            heights[below], heights[above] = heights[below] - overlap / 2, heights[above] + overlap / 2
    for name, (x, y), height in zip(names, centers, heights, strict=True):
        axes.text(x + ASIDE, height, name, transform=axes.transAxes, va="center", parse_math=False)
        if abs(height - y) > LINE / 2:
            way = [x, x + ASIDE - 0.005], [y, height]
            axes.plot(*way, transform=axes.transAxes, color="#555555", linewidth=0.6)


def draw_named_rulers(
    axes: "Axes", rulers: Sequence[tuple[str, list[float], list[float]]], beside: bool
) -> list[tuple[float, float, str, str]]:
    """Draw lines that are no measurements, and name each; those that end at the right are returned if names are beside.

    A level is named above its left end, and a guide right of its end, or left of it if it leaves the panel at the top.
    """
    ends = []
    for name, x, heights in rulers:
        axes.plot(x, heights, color=GUIDE, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        level, early = heights[0] == heights[-1], x[-1] < 0.9 * axes.get_xlim()[1]
        if beside and not level and not early:
            ends.append((x[-1], heights[-1], name, GUIDE))
            continue
        end, apart, across, along = (0, (0, 2), "left", "bottom") if level else (-1, (4, 0), "left", "center")
        if early and not level:
            apart, across = (-3, 0), "right"
        about: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "color": GUIDE, "parse_math": False}
        axes.annotate(name, (x[end], heights[end]), apart, ha=across, va=along, **about)
    return ends


def shorten_name(name: str) -> str:
    """A name that fits beside a line or in a legend."""
    return name if len(name) <= 32 else f"{name[:31]}…"


def _place(axes: "Axes", x: float, y: float) -> tuple[float, float]:
    """A point as shares of the panel."""
    place = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
    return float(place[0]), float(place[1])
