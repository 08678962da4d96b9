"""Tables and figures of the measurements of `linnet bench`, for a terminal or a page."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from linnet.bench.costs import GUIDES, MIB, MILLI, QUIET
from linnet.errors import InputError
from linnet.figures.figure import Figure, Series
from linnet.figures.table import Table

FORMAT = "linnet-bench-1"
BENCHES = ("ops", "model", "decode", "profile", "vision")
SDPA, SOFTMAX = "torch SDPA", "softmax"
BOTH = "forward+backward"
FEW = 7  # lines in a figure of ops; figures of models and steps draw SHOWN; tables have everything
SHOWN = (
    *("softmax", "torch SDPA, cache in place", "transnormer_t1", "transnormer_t2", "diag", "norm", "lln", "lln_diag"),
    *("elu", "performer", "nystromformer"),
)
Row = Mapping[str, Any]
Result = Mapping[str, Any]


def check_bench_result(result: Any) -> None:
    """Raise unless `linnet bench` wrote this."""
    try:
        sound = result["format"] == FORMAT and result["bench"] in BENCHES
        sound = sound and {*result} >= {"settings", "environment", "skipped", "complete", "seconds"}
        sound = sound and all({"table", "case", "form", "pass", "batch", "tokens"} <= {*row} for row in result["rows"])
        sound = sound and all("seconds" in row or "reason" in row for row in result["rows"])
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise InputError(f"this is not a measurement of `linnet bench` ({FORMAT})")


def pick_bench_rows(result: Result, **wanted: Any) -> list[Row]:
    """The rows with these values, including those without a measurement."""
    return [row for row in result["rows"] if all(row[key] == value for key, value in wanted.items())]


def bench_table_share(row: Row) -> float | None:
    """The time for the matrix products or copies alone, as a share of the measured time."""
    if "seconds" not in row or "flops" not in row:
        return None
    return max(row["flops"] / row["gemm"], row["bytes"] / row["copy"]) / row["seconds"]


def bench_table_exponent(rows: Sequence[Row], key: str) -> float | None:
    """The slope of ln(value) over ln(tokens) at the smallest batch; None with fewer than two measurements."""
    batch = min((row["batch"] for row in rows), default=1)
    points = [(math.log(row["tokens"]), math.log(row[key])) for row in rows if row["batch"] == batch and row.get(key)]
    if len(points) < 2:
        return None
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def bench_tables(result: Any) -> list[Table]:
    """All tables of one benchmark."""
    check_bench_result(result)
    makers = {
        "ops": _ops_tables,
        "model": _model_tables,
        "decode": _decode_tables,
        "profile": _profile_tables,
        "vision": _vision_tables,
    }
    return makers[result["bench"]](result)


def _ops_tables(result: Result) -> list[Table]:
    tables = []
    for form in ("causal", "bidirectional"):
        for which in ("forward", "forward+backward"):
            rows = pick_bench_rows(result, form=form, **{"pass": which})
            time, memory = f"{form}, {which}: time", f"{form}, {which}: peak memory above the inputs"
            tables.append(_table(time, rows, "seconds", _shared_time, includes=True))
            tables.append(_table(memory, rows, "memory", lambda row: f"{_short(row['memory'] * MIB)} MiB"))
    return tables


def _shared_time(row: Row) -> str:
    part = bench_table_share(row)
    return f"{_short(row['seconds'] * MILLI)} ms" + ("" if part is None else f", {part:.0%}")


def _model_tables(result: Result) -> list[Table]:
    rate = {
        which: _table(
            f"LRA model, {which}: steps per second",
            pick_bench_rows(result, table="model", **{"pass": which}),
            *("seconds", lambda row: _short(1 / row["seconds"])),
        )
        for which in ("train", "inference")
    }
    layer = pick_bench_rows(result, table="layer")
    time = _table("layer, forward+backward: time", layer, "seconds", lambda row: f"{_short(row['seconds'] * MILLI)} ms")
    memory = _table(
        "layer, forward+backward: peak memory", layer, "memory", lambda row: f"{_short(row['memory'] * MIB)} MiB"
    )
    return [*rate.values(), time, memory]


def _vision_tables(result: Result) -> list[Table]:
    """Time and memory by resolution, and from which one on a mechanism is faster than softmax."""
    tables = []
    for which, title in (("inference", "forward"), ("train", "training step")):
        rows = pick_bench_rows(result, table="vision", **{"pass": which})
        cells = [row for row in rows if "seconds" in row]
        tables.append(_table(f"{title}: time", rows, "seconds", lambda row: f"{_short(row['seconds'] * MILLI)} ms"))
        if which == "train":
            memory = _table(f"{title}: peak memory", rows, "memory", lambda row: f"{_short(row['memory'] * MIB)} MiB")
            tables.append(memory)
        base = {(row["batch"], row["tokens"]): row["seconds"] for row in cells if row["case"] == SOFTMAX}
        lines = []
        for name in dict.fromkeys(row["case"] for row in cells if row["case"] != SOFTMAX):
            own = {(row["batch"], row["tokens"]): row["seconds"] for row in cells if row["case"] == name}
            common = [size for size in base if size in own]
            if common:
                lines.append([name, _crossover(common, own, base), _ratio(common[-1], own, base)])
        columns = ["attention", "from patches", "times as fast"]
        tables.append(Table(f"{title}: faster than softmax", columns, lines, ("attention",)))
    return tables


def _vision_figures(result: Result) -> list[Figure]:
    """Time of both passes and peak memory against the number of patches."""
    panels = []
    for which, title, key, scale, unit in (
        ("inference", "Forward", "seconds", MILLI, "milliseconds"),
        ("train", "Training step", "seconds", MILLI, "milliseconds"),
        ("train", "Peak memory, training", "memory", MIB, "MiB"),
    ):
        rows = pick_bench_rows(result, table="vision", **{"pass": which})
        lines = _lines(rows, key, scale)
        note = f"{title}.{gaps}" if key == "seconds" and (gaps := _gaps(rows, lines, "patches")) else ""
        guides = GUIDES if key == "seconds" else (1,)
        panels.append(Figure(title, "patches", unit, lines, log_x=True, log_y=True, note=note, guides=guides))
    return panels


def _decode_tables(result: Result) -> list[Table]:
    tables = []
    for table, title in (("core", "step of a core"), ("model", "step of a model")):
        rows = pick_bench_rows(result, table=table)
        tables.append(_table(f"{title}: time", rows, "seconds", lambda row: f"{_short(row['seconds'] * 1e6)} us"))
        tables.append(_table(f"{title}: state", rows, "state", lambda row: f"{_short(row['state'] / 1024)} KiB"))
    return tables


def _profile_tables(result: Result) -> list[Table]:
    lines = []
    for row in result["rows"]:
        size = f"{row['case']}, {row['form']}, {row['pass']}, {row['batch']} x {row['tokens']:,}"
        whole = sum(part["seconds"] for part in row.get("parts", []))
        if "seconds" in row:
            lines.append([size, "all of it, in turns with the others", "", f"{_short(row['seconds'] * MILLI)} ms", ""])
        limits = [("flops", "gemm", "its operations as a matrix product"), ("bytes", "copy", "its tensors as a copy")]
        for amount, rate, name in limits:
            if amount in row and rate in row:
                lines.append([size, name, "", f"{_short(row[amount] / row[rate] * MILLI)} ms", ""])
        for part in row.get("parts", []):
            time, of_whole = f"{_short(part['seconds'] * MILLI)} ms", f"{part['seconds'] / whole:.0%}"
            lines.append([size, part["name"], str(part["calls"]), time, of_whole])
    return [Table("parts of a call", ["what", "part", "calls", "time", "share"], lines, ("what", "part"))]


def _table(title: str, rows: Sequence[Row], key: str, cell: Callable[[Row], str], includes: bool = False) -> Table:
    """One line per case, one column per size, and the exponent; a dash where nothing was measured."""
    sizes = list(dict.fromkeys((row["batch"], row["tokens"]) for row in rows))
    lines = []
    for name in dict.fromkeys(row["case"] for row in rows):
        own = {(row["batch"], row["tokens"]): row for row in rows if row["case"] == name}
        cells = [cell(own[size]) if size in own and key in own[size] else "-" for size in sizes]
        slope = bench_table_exponent(list(own.values()), key)
        first = [name, next(iter(own.values())).get("includes", "")] if includes else [name]
        lines.append([*first, *cells, "-" if slope is None else f"{slope:.2f}"])
    heads = ["attention", "includes"] if includes else ["attention"]
    columns = [*heads, *(f"{batch} x {tokens:,}" for batch, tokens in sizes), "exponent"]
    return Table(title, columns, lines, heads)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bench_note(result: Any) -> str:
    """A note on how and where it was measured, what is missing and why, and how busy other programs were."""
    check_bench_result(result)
    settings, where, rows = result["settings"], result["environment"], result["rows"]
    lines = [ABOUT[result["bench"]].format(**settings, style="compiled" if settings.get("compiled") else "eager")]
    lines.append(
        f"Columns: batch x tokens; {settings['type']}. Times are medians of the quieter half of {settings['rounds']} "
        f"samples (3 of slow calls); the calls and the limits take turns in random order. Calls that take more than "
        f"{settings['limit']:g} seconds, or half of that in other libraries, are left out. Allocator: "
        f"{settings['allocator']}. Each memory peak is measured in its own process, on one thread, where freed blocks "
        "return to the system at once."
    )
    timed = [row for row in rows if "seconds" in row]
    if timed:
        gemm, copy = (max(row[key] for row in timed) for key in ("gemm", "copy"))
        spread = sorted((row["high"] - row["low"]) / row["seconds"] for row in timed)[len(timed) // 2]
        lines.append(
            f"torch {where['torch']}, {where['threads']} threads, {where['machine']}: at best {gemm / 1e9:,.0f} "
            f"GFLOP/s in a matrix product and {copy / 1e9:,.1f} GB/s in a copy. Half of the times spread by less "
            f"than {spread:.0%} of their median. {result['seconds'] / 60:.1f} minutes."
        )
    lines += _disturbance(timed, where)
    if settings.get("quick"):
        lines.append("Tiny sizes: they only show that the benchmark works.")
    if not result["complete"]:
        lines.append("Interrupted: these are the results so far.")
    return "\n".join(lines)


ABOUT = {
    "ops": "Attention alone: {heads} heads of width {head_dim}. Percentages are the longer of two limits (the useful "
    "operations at the speed of a matrix product, the tensors at the speed of a copy) as a share of the measured time.",
    "model": "Model: 2 layers, width 64, 2 heads, bytes, mean over tokens, 2 classes; a training step is forward, "
    "backward and AdamW. Layer: attention with its projections, width 768, 12 heads. Everything runs {style}.",
    "decode": "The cost of the next token, from the state after the context: a core with {heads} heads of width "
    "{head_dim}, and a model of 6 such layers with projections, FFN and a vocabulary of 8,192.",
    "profile": "One call under torch's profiler: the time of each operator without the operators that it calls; "
    "those below 2 % are added up. Above them are the limits: the useful operations and the tensors of "
    "{heads} heads of width {head_dim} alone.",
    "vision": "A vision transformer of {layers} layers, width 64 and 4 heads reads one image in patches of {patch} x "
    "{patch} pixels; the sides have {pixels} pixels. A training step is forward, backward and "
    "AdamW. Diag and T2 attend inside windows of at most 8 x 8 patches first. Softmax is torch's fused one.",
}


def _disturbance(timed: Sequence[Row], where: Mapping[str, Any]) -> list[str]:
    """A line about other programs, if they used noticeable time."""
    found = sorted(row["others"] for row in timed if "others" in row)
    if not found or found[-1] < QUIET:
        return []
    free = where["cores"] - where["threads"]
    disturbed = sum(others > free + QUIET for others in found)
    verdict = f"; {disturbed / len(found):.0%} of the times were disturbed, and are shorter on a quiet machine"
    verdict = verdict if disturbed else ""
    return [f"Other programs kept up to {found[-1]:.1f} of {where['cores']} cores busy{verdict}."]


def bench_missing(result: Any) -> list[str]:
    """Why cases have no row or only dashes: one line per reason."""
    reasons: dict[str, dict[str, None]] = {}
    for entry in [*result["skipped"], *(row for row in result["rows"] if "reason" in row)]:
        size = f" from {entry['batch']} x {entry['tokens']:,}" if "tokens" in entry else ""
        known = reasons.setdefault(entry["reason"], {})
        if not any(other.startswith(f"{entry['case']}, {entry['form']}") for other in known):
            known[f"{entry['case']}, {entry['form']}{size}"] = None
    return [f"{'; '.join(names)}: {reason}." for reason, names in reasons.items()]


def bench_figures(result: Any) -> dict[str, list[Figure]]:
    """The figures by name; each is a row of panels."""
    check_bench_result(result)
    if result["bench"] == "ops":
        return {f"ops-{form}": _ops_figures(result, form) for form in ("causal", "bidirectional")}
    if result["bench"] == "model":
        rates = [_figure(result, "steps per second", "model", which) for which in ("train", "inference")]
        return {"model": rates, "layer": [_layer_figure(result, key) for key in ("seconds", "memory")]}
    if result["bench"] == "vision":
        return {"vision": _vision_figures(result)}
    if result["bench"] == "profile":
        return {}
    core = pick_bench_rows(result, table="core", batch=min(row["batch"] for row in result["rows"]))
    time = Figure("One step of a core", "context", "microseconds", _lines(core, "seconds", 1e6), log_x=True, log_y=True)
    state = Figure("Its state", "context", "KiB", _lines(core, "state", 1 / 1024), log_x=True, log_y=True)
    return {"decode": [time, state]}


def _lines(rows: Sequence[Row], key: str, scale: float) -> list[Series]:
    """One series per case of SHOWN, or per case if none of them was measured."""
    found = []
    names = list(dict.fromkeys(row["case"] for row in rows if key in row))
    for name in [name for name in names if name in SHOWN] or names:
        own = [row for row in rows if row["case"] == name and key in row]
        bounds = [[row[end] * scale for row in own] for end in ("low", "high")] if key == "seconds" else [None, None]
        found.append(Series(name, [row["tokens"] for row in own], [row[key] * scale for row in own], *bounds))
    return found


def _ops_figures(result: Result, form: str) -> list[Figure]:
    """Time, memory and speed relative to softmax, forward and backward, of the best backends and peers."""
    rows = [row for row in pick_bench_rows(result, form=form, **{"pass": "forward+backward"}) if "seconds" in row]
    rows = [row for row in rows if row["batch"] == max(row["batch"] for row in rows)]
    chosen = _chosen(rows)
    rows = [row for row in rows if row["case"] in chosen]
    base = {row["tokens"]: row["seconds"] for row in rows if row["case"] == SDPA}
    speed = []
    for line in _lines(rows, "seconds", 1.0):
        faster = [base[int(N)] / y if y and N in base else None for N, y in zip(line.x, line.y, strict=True)]
        speed.append(Series(line.name, line.x, faster))
    time, memory = _lines(rows, "seconds", MILLI), _lines(rows, "memory", MIB)
    note = f"Forward and backward.{_gaps(pick_bench_rows(result, form=form, **{'pass': BOTH}), time)}"
    return [
        Figure("Time", "tokens", "milliseconds", time, log_x=True, log_y=True, note=note, guides=GUIDES),
        Figure("Peak memory", "tokens", "MiB", memory, log_x=True, log_y=True, guides=(1,)),
        Figure("Speed against softmax", "tokens", "times as fast", speed, log_x=True, log_y=True),
    ]


def _gaps(rows: Sequence[Row], lines: Sequence[Series], counted: str = "tokens") -> str:
    """Why lines that are drawn end early: one sentence per line."""
    drawn = {line.name: line.x for line in lines}
    found: dict[str, str] = {}
    for row in rows:
        if "reason" in row and row["tokens"] not in drawn.get(row["case"], [row["tokens"]]):
            found.setdefault(row["case"], f"from {row['tokens']:,} {counted}, which {row['reason']}")
    return "".join(f" {name} has no points {gap}." for name, gap in found.items())


def _chosen(rows: Sequence[Row]) -> list[str]:
    """The cases to draw: torch's softmax, the fastest backend of each op, the two fastest peers, then plain forms."""
    far = max((row["tokens"] for row in rows), default=0)
    order = sorted((row for row in rows if row["tokens"] == far), key=lambda row: row["seconds"])
    best = {row["case"].partition(",")[0]: row["case"] for row in reversed(order) if row["group"] == "op"}
    peers, plain = ([row["case"] for row in order if row["group"] == group] for group in ("peer", "plain"))
    return list(dict.fromkeys([SDPA, *best.values(), *peers[:2], *plain]))[:FEW]


def _figure(result: Result, label: str, table: str, which: str) -> Figure:
    """Steps per second against tokens."""
    rows = [row for row in pick_bench_rows(result, table=table, **{"pass": which}) if "seconds" in row]
    batch = rows[0]["batch"] if rows else 0
    rows = [row for row in rows if row["batch"] == batch]
    series = [
        Series(line.name, line.x, [1 / y if y else None for y in line.y]) for line in _lines(rows, "seconds", 1.0)
    ]
    return Figure(which.capitalize(), "tokens", label, series, log_x=True, log_y=True, guides=(-1, -2))


def _layer_figure(result: Result, key: str) -> Figure:
    title, unit, scale = ("Time", "milliseconds", MILLI) if key == "seconds" else ("Peak memory", "MiB", MIB)
    where = result["environment"]
    note = (
        f"One attention layer with its projections, forward and backward: width 768, 12 heads, batch 1, float32, "
        f"torch {where['torch']}, {where['threads']} threads.\nThe softmax layer is torch's fused one."
    )
    rows = pick_bench_rows(result, table="layer")
    lines = _lines(rows, key, scale)
    guides = GUIDES if key == "seconds" else (1,)
    note += _gaps(rows, lines)
    return Figure(title, "tokens", unit, lines, log_x=True, log_y=True, note=note, guides=guides)


def bench_crossover_table(result: Result) -> Table:
    """The length from which a case is faster than torch's softmax, forward and backward."""
    lines = []
    for form in ("causal", "bidirectional"):
        rows = [row for row in pick_bench_rows(result, form=form, **{"pass": "forward+backward"}) if "seconds" in row]
        base = {(row["batch"], row["tokens"]): row["seconds"] for row in rows if row["case"] == SDPA}
        for name in dict.fromkeys(row["case"] for row in rows if row["case"] != SDPA):
            own = {(row["batch"], row["tokens"]): row["seconds"] for row in rows if row["case"] == name}
            common = [size for size in base if size in own]
            if common:
                lines.append([name, form, _crossover(common, own, base), f"{_ratio(common[-1], own, base)}"])
    columns = ["attention", "form", "from tokens", "times as fast"]
    return Table("faster than torch's softmax", columns, lines, ("attention", "form"))


def _crossover(sizes: Sequence[tuple[int, int]], own: Mapping[Any, float], base: Mapping[Any, float]) -> str:
    batch = sizes[0][0]
    lengths = [tokens for size, tokens in sizes if size == batch]
    slower = [tokens for tokens in lengths if own[batch, tokens] > base[batch, tokens]]
    if not slower:
        return f"{lengths[0]:,} or less"
    after = [tokens for tokens in lengths if tokens > slower[-1]]
    return f"{after[0]:,}" if after else f"more than {lengths[-1]:,}"


def _ratio(size: tuple[int, int], own: Mapping[Any, float], base: Mapping[Any, float]) -> str:
    return f"{_short(base[size] / own[size])} at {size[0]} x {size[1]:,}"
