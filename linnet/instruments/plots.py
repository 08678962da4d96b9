"""The figures of an analysis: per layer and head, the dilution curve, the distribution of weights, kernels, maps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from linnet.errors import unknown_name_error
from linnet.figures.figure import FORMATS, Figure, Series, save_figures
from linnet.figures.heatmap import save_heatmaps, unpack_heatmap
from linnet.instruments.analyze import Analysis, analysis_by_head

BY_LAYER = (  # title, label, instrument, value
    ("Entropy", "share of the largest", "entropy", "relative"),
    ("Temperature", "1 / std of ln A", "temperature", "weights"),
    ("Spectral gap", "1 − |λ₂|", "spectral_gap", "gap"),
    ("Local area", "share of the sequence", "local_score", "area"),
)
KERNELS = ("softmax", "lln", "elu", "relu", "quadratic")
NORMAL = 99  # quantiles of a fit
Named = Sequence[tuple[str, Analysis]]


def check_plot_format(kind: str) -> None:
    """Raise if there is no such file format for figures."""
    if f".{kind}" not in FORMATS:
        raise unknown_name_error("format", kind, [name[1:] for name in FORMATS])


def plot_layers(named: Named) -> list[Figure]:
    """One figure per quantity, over the layers: the heads and their mean for one run, only the means for several."""
    figures = []
    for title, label, instrument, value in BY_LAYER:
        series: list[Series] = []
        for name, analysis in named:
            found = [analysis_by_head(layer, instrument, value) for layer in analysis["layers"]]
            means = [fmean(heads) if heads else None for heads in found]
            series.append(Series(name if len(named) > 1 else "mean", range(len(means)), means))
            if len(named) == 1 and max(map(len, found), default=0) > 1:
                x = [i for i, heads in enumerate(found) for _ in heads]
                series.append(Series("each head", x, [y for heads in found for y in heads], points=True))
        if any(y is not None for line in series for y in line.y):
            figures.append(Figure(title, "layer", label, series))
    return figures


def plot_dilution(named: Named) -> Figure | None:
    """Locally accumulated score: one curve per layer; for several runs one per run, the mean over layers and heads."""
    series = []
    for name, analysis in named:
        curves = {layer["name"]: _curve(layer, "local_score", "curve") for layer in analysis["layers"]}
        found = {layer: curve for layer, curve in curves.items() if curve is not None}
        x = np.linspace(0, 1, 100).tolist()
        if len(named) > 1:  # a run without a curve keeps its place, and so its color
            mean = np.mean(list(found.values()), axis=0).tolist() if found else []
            series.append(Series(name, x[: len(mean)], mean))
        else:
            series += [Series(layer, x, curve.tolist()) for layer, curve in found.items()]
    if not any(line.x for line in series):
        return None
    label = "share of the sequence around a token"
    return Figure("Locally accumulated attention", "share of the attention", label, series)


def plot_lognormal(analysis: Analysis) -> Figure | None:
    """Quantiles of ln A against those of a normal distribution; the diagonal is log-normal attention."""
    from statistics import NormalDist

    x = [NormalDist().inv_cdf((i + 1) / (NORMAL + 1)) for i in range(NORMAL)]
    series = []
    for layer in analysis["layers"]:
        quantiles = _curve(layer, "lognormal_fit", "quantiles")
        if quantiles is None or len(quantiles) != NORMAL:
            continue
        mean, variance = (analysis_by_head(layer, "lognormal_fit", key) for key in ("mean", "variance"))
        if not mean or not variance:
            continue
        deviation = max(fmean(variance), 1e-12) ** 0.5
        series.append(Series(layer["name"], x, ((quantiles - fmean(mean)) / deviation).tolist()))
    if not series:
        return None
    series.append(Series("log-normal", [x[0], x[-1]], [x[0], x[-1]]))
    normal = "quantile of a normal distribution"
    return Figure("Distribution of the weights", normal, "quantile of ln A, standardized", series)


def plot_kernels(analysis: Analysis) -> list[Figure]:
    """Entropy and gap of kernels against temperature, as means over layers and heads."""
    from linnet.instruments.kernel_concentration import TEMPERATURES

    figures = []
    for key, title, label in (("bits", "Entropy by kernel", "bits"), ("gap", "Gap by kernel", "1 − |λ₂|")):
        series = []
        for kernel in KERNELS:
            curves = [_curve(layer, "kernel_concentration", f"{kernel}_{key}") for layer in analysis["layers"]]
            found = [curve for curve in curves if curve is not None]
            if found:
                series.append(Series(kernel, TEMPERATURES, np.mean(found, axis=0).tolist()))
        if series:
            figures.append(Figure(title, "temperature", label, series, log_x=True))
    return figures


def plot_concentration_pair(analysis: Analysis) -> Figure | None:
    """Entropy and gap of every head: concentrated heads are on the left, unbiased ones at the lower left."""
    series = []
    for layer in analysis["layers"]:
        x, y = (analysis_by_head(layer, "concentration", key) for key in ("relative", "gap"))
        if x and len(x) == len(y):
            series.append(Series(layer["name"], x, y, points=True))
    if not series:
        return None
    return Figure("Concentration", "entropy, share of the largest", "spectral gap", series)


def _curve(layer: Mapping[str, Any], instrument: str, value: str) -> "np.ndarray[Any, Any] | None":
    """The mean over heads of a reading that has one curve per head."""
    values = layer["values"].get(instrument)
    found = values.get(value) if isinstance(values, dict) else None
    try:
        curve = np.array(found, dtype=float).mean(axis=0)
    except (TypeError, ValueError):
        return None
    return curve if curve.ndim == 1 and np.isfinite(curve).all() else None


def save_analysis_plots(analysis: Analysis, folder: Path, kind: str = "png") -> list[Path]:
    """Draw the analysis into `folder`, one file per subject, and return the files."""
    named = [("", analysis)]
    alone = {"locality": plot_dilution(named), "law": plot_lognormal(analysis)}
    alone |= {"concentration": plot_concentration_pair(analysis)}
    groups = {"layers": plot_layers(named), "kernels": plot_kernels(analysis)}
    groups |= {name: [figure] for name, figure in alone.items() if figure is not None}
    files = []
    for name, figures in groups.items():
        if figures:
            save_figures(figures, folder / f"{name}.{kind}")
            files.append(folder / f"{name}.{kind}")
    grid = [
        (layer["name"], {f"head {head}": unpack_heatmap(packed) for head, packed in enumerate(layer["maps"])})
        for layer in analysis["layers"]
        if layer.get("maps")
    ]
    if grid:
        save_heatmaps(grid, folder / f"maps.{kind}", analysis["length"])
        files.append(folder / f"maps.{kind}")
    return files
