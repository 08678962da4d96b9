"""The analysis of a model on a text: every instrument on every layer, as one table of plain numbers.

`analyze_views` computes it, `check_analysis` validates one that was read from a file, `analysis_rows` formats it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from linnet.errors import InputError, LinnetError, UnsupportedError, unknown_name_error
from linnet.figures.heatmap import pack_heatmap
from linnet.registry import INSTRUMENT

if TYPE_CHECKING:
    from torch import Tensor

    from linnet.instruments.base import View

FORMAT = "linnet-analysis-1"
Analysis = dict[str, Any]
FIRST = ("entropy", "temperature", "spectral_gap", "concentration", "local_score", "lognormal_fit")  # rows of a table


def choose_analyze_instruments(names: Sequence[str] = ()) -> list[str]:
    """The named instruments without duplicates, or the usual ones if none is named."""
    for name in names:
        if name not in INSTRUMENT:
            raise unknown_name_error("instrument", name, INSTRUMENT.names())
    return list(dict.fromkeys(names)) or [name for name in INSTRUMENT.names() if INSTRUMENT[name].usual]


def analyze_views(
    views: "Sequence[View]",
    names: Sequence[str] = (),
    tokens: Sequence[str] = (),
    records: Sequence[Mapping[str, Any]] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Analysis:
    """Apply instruments to views and return plain numbers: means over the sequences, lists over the heads.

    `tokens` are those of the first sequence, whose maps are kept. `records` come from a run, for instruments that read
    gradients.
    """
    if not views:
        raise InputError("there is no attention to measure")
    instruments = [INSTRUMENT[name]() for name in choose_analyze_instruments(names)]
    layers = []
    for i, view in enumerate(views):
        layer: dict[str, Any] = {"name": view.name, "heads": view.shape[1], "values": {}, "refused": {}, "notes": {}}
        for instrument in instruments:
            if instrument.reads == "weights":
                _add(layer, instrument, view)
        layers.append(layer)
        if progress is not None:
            progress(i + 1, len(views))
    B, _, N = views[0].shape
    found: Analysis = {"format": FORMAT, "sequences": B, "length": N, "causal": views[0].causal, "layers": layers}
    if tokens:
        found["tokens"] = list(tokens)
    if any(instrument.reads == "gradients" for instrument in instruments):
        found["gradients"] = _gradients(records)
    return found


def _add(layer: dict[str, Any], instrument: Any, view: "View") -> None:
    """Add one instrument's numbers to a layer, or the reason why there are none."""
    try:
        refused = instrument.refusal(view)
        values = {} if refused else instrument.measure(view)
        note = None if refused else instrument.note(view)
    except (UnsupportedError, LinnetError) as error:
        if isinstance(error, InputError) and not isinstance(error, UnsupportedError):
            raise
        refused, values, note = str(error), {}, None
    if refused:
        layer["refused"][instrument.name] = refused
        return
    if note:
        layer["notes"][instrument.name] = note
    maps = values.pop("map", None)
    if maps is not None:
        layer["maps"] = [pack_heatmap(head.numpy()) for head in maps[0]]
    layer["values"][instrument.name] = {key: plain_analysis(value.mean(dim=0)) for key, value in values.items()}


def plain_analysis(value: "Tensor") -> Any:
    """Nested lists of floats, with None for NaN and infinity."""

    def clean(item: Any) -> Any:
        if isinstance(item, list):
            return [clean(part) for part in item]
        return round(item, 12) if math.isfinite(item) else None

    return clean(value.double().tolist())


def _gradients(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The deviation of gradients over a run: for all parameters, then for each layer."""
    from linnet.instruments.gradient_deviation import READING, gradient_deviation_of_records

    found = gradient_deviation_of_records(records)
    if found is None:
        return {"reading": READING, "refused": "the run has no records of its gradients"}
    return {"reading": READING, "deviation": plain_analysis(found)}


def check_analysis(analysis: Any) -> Analysis:
    """Return the analysis if it has the right shape, otherwise raise; its numbers and strings are not checked."""
    try:
        sound = analysis["format"] == FORMAT and all(
            isinstance(layer["name"], str) and isinstance(layer["values"], dict) for layer in analysis["layers"]
        )
        sound = sound and isinstance(analysis["length"], int) and isinstance(analysis.get("tokens", []), list)
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise LinnetError(f"this is not an analysis of `linnet analyze` ({FORMAT})")
    return dict(analysis)


def analysis_by_head(layer: Mapping[str, Any], instrument: str, value: str) -> list[float]:
    """The finite numbers of one reading, one per head."""
    found = layer["values"].get(instrument)
    found = found.get(value) if isinstance(found, dict) else None
    return [x for x in found if isinstance(x, int | float)] if isinstance(found, list) else []


def analysis_rows(analysis: Analysis) -> tuple[list[str], list[list[str]]]:
    """Columns and cells for a terminal: one row per quantity, one column per layer, means over the heads."""
    layers = analysis["layers"]
    lines: list[list[str]] = []
    for name in dict.fromkeys([*FIRST, *INSTRUMENT.names()]):
        for value, heading in INSTRUMENT[name].shows.items():
            cells = [analysis_by_head(layer, name, value) for layer in layers]
            if any(cells):
                lines.append([heading, *(f"{fmean(cell):.4g}" if cell else "-" for cell in cells)])
    deviation = _deviation(analysis)
    if deviation:
        places = [layer["name"].split()[1:2] for layer in layers]
        known = {str(i): f"{x:.4g}" for i, x in enumerate(deviation[1:]) if x is not None}
        lines.append(["gradient deviation", *(known.get(place[0], "-") if place else "-" for place in places)])
    return ["", *(layer["name"].removeprefix("layer ") for layer in layers)], lines


def _deviation(analysis: Analysis) -> list[float | None]:
    """The deviation of gradients: for all parameters, then for each layer; empty if it was not measured."""
    found = analysis.get("gradients")
    found = found.get("deviation") if isinstance(found, dict) else None
    if not isinstance(found, list):
        return []
    return [x if isinstance(x, int | float) else None for x in found]


def analysis_remarks(analysis: Analysis) -> list[str]:
    """Notes and refusals, each with the instruments and layers that it applies to."""
    layers = analysis["layers"]
    about: dict[str, tuple[list[str], list[str]]] = {}
    for layer in layers:
        for kind in ("notes", "refused"):
            said = layer.get(kind)
            for name, text in said.items() if isinstance(said, dict) else ():
                text = str(text)
                names, where = about.setdefault(text, ([], []))
                names += [name] * (name not in names)
                short = layer["name"].removeprefix("layer ")
                where += [short] * (short not in where)
    lines = []
    for text, (names, where) in about.items():
        lines.append(f"{', '.join(names)}: {text}" + (f" ({', '.join(where)})" if len(where) < len(layers) else ""))
    gradients, deviation = analysis.get("gradients"), _deviation(analysis)
    if isinstance(gradients, dict):
        whole = f"; for all parameters {deviation[0]:.4g}" if deviation and deviation[0] is not None else ""
        lines.append(f"gradient_deviation: {gradients.get('refused') or gradients.get('reading')}{whole}")
    return lines
