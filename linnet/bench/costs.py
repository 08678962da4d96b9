"""Figures and tables of the time and memory of a layer, as measured by `linnet demo`."""

from collections.abc import Sequence
from typing import Any

from linnet.errors import InputError
from linnet.figures.figure import Figure, Series
from linnet.figures.table import Table

FORMAT = "linnet-bench-layer-1"
BASELINE = "softmax"
GUIDES = (1, 2)  # time in proportion to N and to N^2
QUIET = 0.2  # cores that other programs may keep busy before the note mentions it
MILLI, MIB = 1000.0, 2.0**-20
NUMBERS = ("tokens", "seconds", "low", "high", "memory")


def layer_cost_figures(cost: Any) -> tuple[Figure, Figure]:
    """Time and peak memory against length, on logarithmic axes."""
    rows, note = _checked(cost), layer_cost_note(cost)
    names = list(dict.fromkeys(row["attention"] for row in rows))
    lines = {name: [row for row in rows if row["attention"] == name] for name in names}
    time = [
        Series(
            name=name,
            x=[row["tokens"] for row in found],
            y=[row["seconds"] * MILLI for row in found],
            low=[row["low"] * MILLI for row in found],
            high=[row["high"] * MILLI for row in found],
        )
        for name, found in lines.items()
    ]
    memory = [
        Series(name, [row["tokens"] for row in found], [row["memory"] * MIB for row in found])
        for name, found in lines.items()
    ]
    return (
        Figure("Time", "tokens", "milliseconds", time, log_x=True, log_y=True, note=note, guides=GUIDES),
        Figure("Peak memory", "tokens", "MiB", memory, log_x=True, log_y=True, note=note, guides=(1,)),
    )


def layer_cost_tables(cost: Any) -> list[Table]:
    """The same numbers as tables, also relative to softmax: one row per length, one column per mechanism."""
    rows = _checked(cost)
    time = _table("Time", rows, "seconds", MILLI, "ms", ("faster", "slower"))
    return [time, _table("Peak memory", rows, "memory", MIB, "MiB", ("less", "more"))]


def _table(
    title: str, rows: Sequence[dict[str, Any]], key: str, scale: float, unit: str, words: tuple[str, str]
) -> Table:
    """The table of one quantity; each value is also given relative to softmax at the same length."""
    names = list(dict.fromkeys(row["attention"] for row in rows))
    values = {(row["tokens"], row["attention"]): row[key] * scale for row in rows}
    lines = []
    for tokens in sorted({row["tokens"] for row in rows}):
        base, line = values.get((tokens, BASELINE)), [f"{tokens:,}"]
        for name in names:
            value = values.get((tokens, name))
            line.append("" if value is None else f"{_round(value)} {unit}{_against(value, base, name, words)}")
        lines.append(line)
    return Table(title, ["tokens", *names], lines)


def _round(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _against(value: float, base: float | None, name: str, words: tuple[str, str]) -> str:
    """A ratio such as " (2.0x faster)"; empty for softmax itself."""
    if name == BASELINE or not base or not value:
        return ""
    ratio, word = (base / value, words[0]) if value <= base else (value / base, words[1])
    return f" ({ratio:.3g}x {word})" if ratio >= 1.005 else " (the same)"


def layer_cost_note(cost: Any) -> str:
    """How it was measured, and how busy other programs were."""
    rows, settings, where = _checked(cost), cost["settings"], cost["environment"]
    sizes = f"width {settings['width']}, {settings['heads']} heads, batch {settings['batch']}, {settings['type']}"
    lines = [
        f"One causal layer with its projections, forward and backward: {sizes}.",
        f"Medians of the quieter half of {settings['rounds']} rounds in turns; memory above the inputs, on one thread. "
        f"torch {where['torch']}, threads: {where['threads']}, {where['machine']}.",
        "The softmax layer is torch's fused one, which stores no N x N matrix.",
    ]
    others = max((row.get("others") or 0.0 for row in rows), default=0.0)
    if others >= QUIET:
        disturbed = others > where["cores"] - where["threads"] + QUIET
        verdict = ", more than were free: on a quiet machine the times are shorter" if disturbed else ""
        lines.append(f"Other programs kept up to {others:.1f} of {where['cores']} cores busy{verdict}.")
    return "\n".join(lines)


def _checked(cost: Any) -> list[dict[str, Any]]:
    """The rows; raises unless `linnet.bench.layer` wrote them."""
    try:
        sound = cost["format"] == FORMAT and all(
            isinstance(row["attention"], str)
            and all(isinstance(row[key], int | float) and row[key] >= 0 for key in NUMBERS)
            and isinstance(row.get("others"), int | float | None)
            for row in cost["rows"]
        )
        sound = sound and {*cost["settings"]} >= {"width", "heads", "batch", "rounds", "type"}
        sound = sound and {*cost["environment"]} >= {"torch", "machine"}
        sound = sound and all(isinstance(cost["environment"][key], int) for key in ("threads", "cores"))
    except (KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise InputError(f"this is not a measurement of a layer ({FORMAT})")
    return list(cost["rows"])
