"""Heat maps of attention weights: packed as text for a JSON file or a page, and drawn by matplotlib as a grid.

A weight is stored as its sign and, in 15 bits, the logarithm of its size relative to the largest weight of its map;
weights below e^-14 of the largest count as 0. So a map of 256 tokens takes 175 kB and keeps its small weights.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.errors import LinnetError
from linnet.figures.figure import STYLE, check_figure_matplotlib, check_figure_path, write_figure_canvas

LEVELS = 32767
RANGE = 14.0  # natural logarithms
SEQUENTIAL, DIVERGING = "cividis", "PuOr"  # color-blind readers can distinguish both
Map = NDArray[np.float64]
Grid = Sequence[tuple[str, Mapping[str, Map]]]  # rows: a name and maps by title; NaN is left empty


def pack_heatmap(weights: Map) -> dict[str, Any]:
    """A map (n,n) as plain JSON."""
    size = np.abs(weights)
    high = math.log(size.max()) if size.any() else 0.0
    with np.errstate(divide="ignore"):
        level = np.round((np.log(size) - high) / RANGE * (LEVELS - 1)) + LEVELS  # 1 to LEVELS
    code = (np.where(level >= 1, level, 0) * np.sign(weights)).astype("<i2")
    return {"size": len(weights), "high": high, "data": base64.b64encode(code.tobytes()).decode()}


def unpack_heatmap(packed: Mapping[str, Any]) -> Map:
    """The map again; raises if it is damaged."""
    try:
        code = np.frombuffer(base64.b64decode(packed["data"], validate=True), "<i2").astype(np.float64)
        size = np.exp(packed["high"] + (np.abs(code) - LEVELS) / (LEVELS - 1) * RANGE) * np.sign(code)
        return size.reshape(packed["size"], packed["size"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LinnetError(f"an attention map is damaged: {error}") from None


def shrink_heatmap(packed: Mapping[str, Any], size: int) -> dict[str, Any]:
    """A packed map of at most `size` rows, pooled as `attention_map` does; raises if it is damaged."""
    weights = unpack_heatmap(packed)
    n = len(weights)
    if n <= size:
        return {key: packed[key] for key in ("size", "high", "data")}
    starts = -(-np.arange(size) * n // size)
    counts = np.diff([*starts, n])[:, None]
    return pack_heatmap(np.add.reduceat(np.add.reduceat(weights, starts, axis=1), starts, axis=0) / counts)


def save_heatmaps(
    grid: Grid, path: str | Path, length: int, note: str = "", metadata: Mapping[str, str] | None = None
) -> None:
    """Draw rows of maps of `length` tokens into a PNG, PDF or SVG file; a PNG carries `metadata` as text."""
    check_figure_path(path)
    check_figure_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    columns = max(len(maps) for _, maps in grid)
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(1.9 * columns + 1.2, 1.9 * len(grid) + 0.6), layout="constrained", dpi=200)
        axes = canvas.subplots(len(grid), columns, squeeze=False)
        for signed in (False, True):  # two scales, so that signed maps do not fade the others
            chosen = [i for i, (_, maps) in enumerate(grid) if any((m < 0).any() for m in maps.values()) == signed]
            colors = _colors([m for i in chosen for m in grid[i][1].values()], signed)
            image = None
            for i in chosen:
                image = _draw_row(axes[i], *grid[i], length, colors)
            if image is not None:
                bar = canvas.colorbar(image, ax=axes[chosen], shrink=0.6, aspect=30, extend="both")
                bar.set_label("weight" if signed else "log10 of the weight", fontsize=8)
        canvas.suptitle("Attention maps", fontsize=10, fontweight="bold", x=0.01, ha="left")
        size = max(len(m) for _, maps in grid for m in maps.values())
        notes = [f"{length} tokens{f', pooled to {size}' if size < length else ''}", *filter(None, [note])]
        canvas.supxlabel("; ".join(notes), fontsize=7, color="#555555", x=0.01, ha="left", parse_math=False)
        write_figure_canvas(canvas, path, metadata)


def _draw_row(panels: Any, name: str, maps: Mapping[str, Map], length: int, colors: Mapping[str, Any]) -> Any:
    """Draw the maps of one row side by side; returns the last figure."""
    image = None
    for panel in panels[len(maps) :]:
        panel.set_visible(False)
    for panel, (title, weights) in zip(panels, maps.items(), strict=False):
        extent = (0, length, length, 0)
        image = panel.imshow(_shown(weights, colors), interpolation="nearest", extent=extent, **colors)
        panel.set_title(title, fontsize=8, parse_math=False)
        panel.set_xlabel("key", fontsize=7, labelpad=-6)
        panel.set_xticks([0, length])
        panel.set_yticks([0, length], ["", ""])
        panel.tick_params(labelsize=7, length=2)
    panels[0].set_yticks([0, length], ["0", str(length)])
    panels[0].set_ylabel(f"{name}\nquery", parse_math=False)
    return image


def _colors(maps: Sequence[Map], signed: bool) -> dict[str, Any]:
    """One scale for all maps: logarithmic, from the 1st to the 99.5th percentile; linear and symmetric if `signed`."""
    sizes = np.abs(np.concatenate([np.zeros(0), *(m.ravel() for m in maps)]))
    sizes = sizes[sizes > 0] if (sizes > 0).any() else np.ones(1)
    if signed:
        most = float(np.percentile(sizes, 95))
        return {"cmap": DIVERGING, "vmin": -most, "vmax": most}
    low, high = (float(x) for x in np.percentile(np.log10(sizes), (1, 99.5)))
    middle, half = (low + high) / 2, max(high - low, 0.5) / 2
    return {"cmap": SEQUENTIAL, "vmin": middle - half, "vmax": middle + half}


def _shown(weights: Map, colors: Mapping[str, Any]) -> Map:
    """The values behind the colors: logarithms of weights, or signed weights themselves."""
    if colors["cmap"] == DIVERGING:
        return weights
    with np.errstate(divide="ignore"):
        return np.maximum(np.log10(weights), colors["vmin"])
