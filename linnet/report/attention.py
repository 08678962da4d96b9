"""The attention and gradient parts of a report: figures, tables and maps, from the files of runs."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from linnet.figures.figure import Figure, Series
from linnet.figures.heatmap import shrink_heatmap
from linnet.instruments.analyze import analysis_remarks, analysis_rows
from linnet.instruments.plots import (
    BY_LAYER,
    plot_concentration_pair,
    plot_dilution,
    plot_kernels,
    plot_layers,
    plot_lognormal,
)
from linnet.registry import INSTRUMENT
from linnet.report.runs import SavedRun, run_number

BUDGET = 4 * 10**6  # cells in all maps of a page; with more, the maps are pooled further


def report_gradient_figures(runs: Sequence[SavedRun]) -> list[Figure]:
    """Gradient norms by layer and step, one figure per run; means over the updates of each record."""
    figures = []
    for run in runs:
        records = [record for record in run.train if isinstance(record.get("grad_means"), list)]
        layers = min((len(record["grad_means"]) for record in records), default=1) - 1
        steps = [record["step"] for record in records]
        series = [
            Series(f"layer {i}", steps, [run_number(record["grad_means"][i + 1]) for record in records])
            for i in range(layers)
        ]
        if series:
            title = "Gradient norm by layer" + (f": {run.name}" if len(runs) > 1 else "")
            figures.append(Figure(title, "step", "mean since the last record", series, log_y=True))
    return figures


def report_attention_in_training(runs: Sequence[SavedRun]) -> list[Figure]:
    """Instruments during training, as means over the heads: one line per layer for one run, else one line per run."""
    figures = []
    for title, label, instrument, value in (*BY_LAYER, *_further(runs)):
        series: list[Series] = []
        for run in runs:
            curves: dict[str, list[tuple[int, float]]] = {} if len(runs) == 1 else {run.name: []}
            for record in run.instruments:
                for name, y in _means(record, instrument, value):
                    curves.setdefault(name if len(runs) == 1 else run.name, []).append((record["step"], y))
            for name, points in curves.items():
                steps = sorted({step for step, _ in points})
                series.append(Series(name, steps, [fmean(y for s, y in points if s == step) for step in steps]))
        if any(line.y for line in series):
            wide = instrument == "gradient_bound"  # with a norm, its bound is ten orders of magnitude above the rest
            figures.append(Figure(f"{title} during training", "step", label, series, log_y=wide))
    return figures


def _further(runs: Sequence[SavedRun]) -> list[tuple[str, str, str, str]]:
    """The other recorded instruments, in the form of BY_LAYER."""
    tables = [record.get("values") for run in runs for record in run.instruments]
    recorded = {name for table in tables if isinstance(table, dict) for name in table}
    recorded -= {instrument for _, _, instrument, _ in BY_LAYER}
    names = [name for name in INSTRUMENT.names() if name in recorded]
    return [
        (f"{name.replace('_', ' ').capitalize()}: {heading}", heading, name, value)
        for name in names
        for value, heading in INSTRUMENT[name].shows.items()
    ]


def _means(record: dict[str, Any], instrument: str, value: str) -> list[tuple[str, float]]:
    """(layer, mean over its heads) for one reading of a record; malformed parts are left out."""
    values, layers = record.get("values"), record.get("layers")
    found = values.get(instrument) if isinstance(values, dict) else None
    found = found.get(value) if isinstance(found, dict) else None
    if not isinstance(found, list) or not isinstance(layers, list):
        return []
    known = []
    for name, heads in zip(layers, found, strict=False):
        numbers = [y for y in map(run_number, heads if isinstance(heads, list) else []) if y is not None]
        if numbers:
            known.append((str(name), fmean(numbers)))
    return known


def report_attention_figures(runs: Sequence[SavedRun]) -> list[Figure]:
    """The figures of `linnet analyze`: by layer, and locality; for one run also distribution, pair and kernels."""
    named = [(run.name, run.analysis or {"layers": []}) for run in runs]
    if not any(analysis["layers"] for _, analysis in named):
        return []
    figures: list[Figure | None] = [*plot_layers(named), plot_dilution(named)]
    if len(runs) == 1:
        figures += [plot_lognormal(named[0][1]), plot_concentration_pair(named[0][1]), *plot_kernels(named[0][1])]
    return [figure for figure in figures if figure is not None]


def report_attention_readings(runs: Sequence[SavedRun]) -> list[dict[str, Any]]:
    """The table and the remarks of each analysis."""
    found = []
    for run in runs:
        if run.analysis is not None:
            columns, lines = analysis_rows(run.analysis)
            about = f"{run.analysis.get('sequences', 1)} × {run.analysis['length']} tokens, means over heads"
            table = {"columns": columns, "rows": lines, "remarks": analysis_remarks(run.analysis)}
            found.append({"name": run.name, "about": about, **table})
    return found


def report_attention_maps(runs: Sequence[SavedRun]) -> list[dict[str, Any]]:
    """The attention maps of each run in the form that the page's script reads: packed, with their tokens."""
    analyses = [(run.name, run.analysis) for run in runs if run.analysis is not None]
    every = [head for _, analysis in analyses for layer in analysis["layers"] for head in _packed(layer)]
    largest = math.isqrt(BUDGET // max(len(every), 1))
    found = []
    for name, analysis in analyses:
        layers = [
            {"name": layer["name"], "maps": [shrink_heatmap(head, largest) for head in _packed(layer)]}
            for layer in analysis["layers"]
            if _packed(layer)
        ]
        if layers:
            tokens = [str(token) for token in analysis.get("tokens", [])]
            text = {"tokens": tokens, "separator": str(analysis.get("separator", ""))}
            found.append({"name": name, "length": analysis["length"], **text, "layers": layers})
    return found


def _packed(layer: dict[str, Any]) -> list[Any]:
    """The packed maps of a layer."""
    found = layer.get("maps")
    return found if isinstance(found, list) else []
