"""The papers' claims about attention and gradients as tables and figures, rendered from committed records."""

import math
import statistics
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from linnet.figures.figure import Figure, Series
from linnet.figures.heatmap import Grid, unpack
from linnet.instruments.analyze import by_head
from linnet.instruments.gradient_deviation import deviation_of_records
from linnet.instruments.plots import BY_LAYER, KERNELS

Record = dict[str, Any]


class Evidence(NamedTuple):
    """How the records of one study are shown."""

    what: str  # of the figure, for those who cannot see it
    table: Callable[[Sequence[Record]], str]
    figures: Callable[[Sequence[Record], str], list[Figure]]
    maps: Callable[[Sequence[Record]], Grid] = lambda records: []


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _systems(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by row, in the order of their names."""
    rows: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record["row"], record["seed"])):
        rows.setdefault(record["row"], []).append(record)
    return rows


def _mean(runs: Sequence[Record], instrument: str, value: str, part: slice = slice(None)) -> str:
    """The mean over runs, layers and heads of a reading; "-" where it was refused."""
    layers = [layer for run in runs for layer in run["analysis"]["layers"][part]]
    found = [x for layer in layers for x in by_head(layer, instrument, value)]
    return f"{statistics.fmean(found):.3g}" if found else "-"


def _budget(records: Sequence[Record]) -> str:
    """What was trained, and how to do it again."""
    first = records[0]
    train, where = first["config"]["train"], first["environment"]
    return (
        f"Each run: {train['steps']} steps of {train['batch']} blocks of {first['config']['data']['context']} tokens, "
        f"read on the validation split; {_versions(where)} Command: `{first['command']}`."
    )


def _versions(where: Record) -> str:
    return f"linnet {where['linnet']}, torch {where['torch']}."


def _locality(records: Sequence[Record]) -> str:
    columns = ["system", "local area", "first half of the layers", "second half", "entropy, share of the largest"]
    rows = []
    for name, runs in _systems(records).items():
        half = len(runs[0]["analysis"]["layers"]) // 2
        parts = [_mean(runs, "local_score", "area", part) for part in (slice(None), slice(half), slice(half, None))]
        rows.append([name, *parts, _mean(runs, "entropy", "relative")])
    return f"{_table(columns, rows)}\n\nSmall areas are local attention, 0.5 is uniform. {_budget(records)}"


def _locality_figures(records: Sequence[Record], note: str) -> list[Figure]:
    series = []
    for name, runs in _systems(records).items():
        heads = [
            curve
            for run in runs
            for layer in run["analysis"]["layers"]
            for curve in layer["values"]["local_score"]["curve"]
        ]
        mean = [statistics.fmean(ys) for ys in zip(*heads, strict=True)]
        series.append(Series(name, [i / 99 for i in range(100)], mean))
    title = "Locally accumulated attention"
    return [Figure(title, "share of the attention", "share of the sequence", series, note=note)]


def _locality_maps(records: Sequence[Record]) -> Grid:
    """The maps of the first and the last layer, of each system's first seed; NaN where a query cannot look."""
    grid: list[tuple[str, dict[str, Any]]] = [("first layer", {}), ("last layer", {})]
    for name, (run, *_) in _systems(records).items():
        layers = run["analysis"]["layers"]
        for (_, maps), layer in zip(grid, (layers[0], layers[-1]), strict=True):
            if "map" in layer:
                weights = unpack(layer["map"])
                seen = np.tri(len(weights)) if run["analysis"]["causal"] else np.ones_like(weights)
                maps[f"{name}: {layer['name'].split()[-1]}"] = np.where(seen, weights, np.nan)
    return [(row, maps) for row, maps in grid if maps]


def _deviations(records: Sequence[Record]) -> str:
    columns = ["system", "seeds", "gradient deviation", "smallest of a layer", "largest of a layer", "after warm-up"]
    rows = []
    for name, runs in _systems(records).items():
        found = [run["analysis"]["gradients"]["deviation"] for run in runs]
        layers = [x for run in found for x in run[1:]]
        whole, late = statistics.fmean(run[0] for run in found), statistics.fmean(map(_after_warmup, runs))
        numbers = (whole, min(layers), max(layers), late)
        rows.append((whole, [name, str(len(runs)), *(f"{x:.3f}" for x in numbers)]))
    reading = records[0]["analysis"]["gradients"]["reading"]
    body = _table(columns, [row for _, row in sorted(rows, key=lambda pair: -pair[0])])
    return f"{body}\n\nRead as {reading}. {_budget(records)}"


def _after_warmup(run: Record) -> float:
    """The deviation over the updates after the warm-up alone."""
    late = [entry for entry in run["curve"] if entry["step"] > run["config"]["train"]["warmup"]]
    found = deviation_of_records(late)
    return math.nan if found is None else float(found[0])


def _deviation_figures(records: Sequence[Record], note: str) -> list[Figure]:
    series = []
    for name, runs in _systems(records).items():
        known = [entry for entry in runs[0]["curve"] if "grad_means" in entry]
        series.append(Series(name, [entry["step"] for entry in known], [entry["grad_means"][0] for entry in known]))
    return [Figure("Gradient norm", "step", "before clipping", series, log_y=True, note=note)]


def _training(records: Sequence[Record]) -> str:
    columns = ["system", "entropy, share of the largest", "temperature", "of q, k", "spectral gap"]
    columns += ["Var ln A along rows", "of q, k"]
    readings = (
        ("entropy", "relative"),
        ("temperature", "weights"),
        ("temperature", "qk"),
        ("spectral_gap", "gap"),
        ("moment_matching", "variance"),
        ("moment_matching", "target"),
    )
    rows = [[name, *(_mean(runs, *reading) for reading in readings)] for name, runs in _systems(records).items()]
    return f"{_table(columns, rows)}\n\nMeans over layers and heads, at the end. {_budget(records)}"


def _training_figures(records: Sequence[Record], note: str) -> list[Figure]:
    figures = []
    for title, label, instrument, value in BY_LAYER[:3]:  # entropy, temperature, gap
        series = []
        for name, runs in _systems(records).items():
            points: dict[int, list[float]] = {}
            for entry in (entry for run in runs for entry in run["curve"] if entry["split"] == "instruments"):
                layers = entry["values"].get(instrument, {}).get(value, [])
                numbers = [x for heads in layers for x in heads or [] if x is not None]
                points.setdefault(entry["step"], []).extend(numbers)
            known = {step: ys for step, ys in points.items() if ys}
            series.append(Series(name, list(known), [statistics.fmean(ys) for ys in known.values()]))
        figures.append(Figure(title, "step", label, series, log_y=instrument == "temperature", note=note))
    return figures


def _law(records: Sequence[Record]) -> str:
    (record,) = records
    tables, settings = record["matching"], record["settings"]
    columns = ["σ", "σ_q²σ_k²", "Var ln A softmax", "LLN", "LLN, released constants", "skew softmax", "LLN"]
    columns += ["entropy softmax", "LLN", "gap softmax", "LLN"]
    rows = []
    for ours, paper in zip(tables["variance"], tables["paper"], strict=True):
        cells = [ours["target"], ours["softmax_row_variance"], ours["lln_row_variance"], paper["lln_row_variance"]]
        cells += [ours[f"{name}_{key}"] for key in ("skew", "entropy", "gap") for name in ("softmax", "lln")]
        rows.append([f"{ours['sigma']:g}", *(f"{x:.3g}" for x in cells)])
    widths = _table(
        ["head width", "σ_q²σ_k²", "Var ln A, released constants", "ours", "a", "b", "c₂", "c₁", "c₀"],
        [
            [str(w["head_dim"]), *(f"{w[key]:.3g}" for key in ("target", "paper", "variance"))]
            + [f"{x:.4g}" for x in (*w["line"], *w["parabola"])]
            for w in record["widths"]
        ],
    )
    return (
        f"{_table(columns, rows)}\n\nOther head widths at σ = 1.2, and what `calibrate` measures:\n\n{widths}\n\n"
        f"{settings['tokens']:,} tokens, head width {settings['head_dim']}, means of {settings['seeds']} seeds, "
        f"variances along rows, entropies in bits; {_versions(record['environment'])} Command: `{record['command']}`."
    )


def _law_figures(records: Sequence[Record], note: str) -> list[Figure]:
    (record,) = records
    ours, paper = (record["matching"][match] for match in ("variance", "paper"))
    x = [row["target"] for row in ours]
    variance = [
        Series("softmax", x, [row["softmax_row_variance"] for row in ours]),
        Series("LLN", x, [row["lln_row_variance"] for row in ours]),
        Series("LLN, released constants", x, [row["lln_row_variance"] for row in paper]),
    ]
    entropy = [
        Series("softmax", x, [row["softmax_entropy"] for row in ours]),
        Series("LLN", x, [row["lln_entropy"] for row in ours]),
    ]
    normal = [NormalDist().inv_cdf((i + 1) / 100) for i in range(99)]
    law = [Series(name, normal, record["quantiles"][key]) for name, key in (("softmax", "softmax"), ("LLN", "lln"))]
    return [
        Figure("Variance of ln A", "σ_q²σ_k²", "along rows", variance, note=note),
        Figure("Law of ln A at σ = 1.2", "quantile of a normal law", "quantile, standardized", law, note=note),
        Figure("Entropy", "σ_q²σ_k²", "bits", entropy, note=note),
    ]


def _kernels(records: Sequence[Record]) -> str:
    (record,) = records
    settings, temperatures = record["settings"], record["temperatures"]
    parts = []
    for key, title in (("bits", "Entropy in bits"), ("gap", "Spectral gap")):
        rows = [[name, *(f"{x:.3f}" for x in record["kernels"][name][key])] for name in KERNELS]
        parts.append(_table([f"{title}, at temperature", *(f"{t:g}" for t in temperatures)], rows))
    about = f"{settings['tokens']} tokens, head width {settings['head_dim']}, means of {settings['seeds']} seeds"
    parts.append(f"{about}; {_versions(record['environment'])} Command: `{record['command']}`.")
    return "\n\n".join(parts)


def _kernel_figures(records: Sequence[Record], note: str) -> list[Figure]:
    (record,) = records
    x = record["temperatures"]
    figures = []
    for key, title, label in (("bits", "Entropy", "bits"), ("gap", "Spectral gap", "1 − |λ₂|")):
        series = [Series(name, x, record["kernels"][name][key]) for name in KERNELS]
        figures.append(Figure(title, "temperature", label, series, log_x=True, note=note))
    return figures


EVIDENCE = {
    "transnormer-figure2": Evidence("locally accumulated attention", _locality, _locality_figures, _locality_maps),
    "transnormer-table2": Evidence("norm of the gradient against steps", _deviations, _deviation_figures),
    "lln-training": Evidence("entropy, temperature and gap against steps", _training, _training_figures),
    "lln-distribution": Evidence("variance, law and entropy of ln A", _law, _law_figures),
    "lln-concentration": Evidence("entropy and gap against temperature", _kernels, _kernel_figures),
}
