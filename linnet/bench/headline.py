"""The five rows at the top of the page of benchmarks: the cost of softmax beside that of linear attention."""

from collections.abc import Mapping
from typing import NamedTuple

from linnet.bench.tables import Result, pick_bench_rows
from linnet.figures.table import Table

UNITS = {
    "seconds": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB"), (1024, "KiB")),
}


class _Headline(NamedTuple):
    """What is compared: a benchmark, its rows, the quantity and its unit, and the two cases."""

    what: str
    bench: str
    rows: Mapping[str, object]
    key: str
    unit: str
    softmax: str
    ours: str


LAYER = {"table": "layer", "tokens": 4096}
STEP = {"table": "core", "tokens": 65536, "batch": 1}
TRAIN = {"table": "model", "tokens": 2048, "batch": 32, "pass": "train"}
CACHE = "torch SDPA, cache in place"
ROWS = (
    _Headline("one layer, forward and backward, 4,096 tokens", "model", LAYER, "seconds", "seconds", "softmax", "norm"),
    _Headline("its peak memory", "model", LAYER, "memory", "bytes", "softmax", "norm"),
    _Headline(
        "training step of a small classifier, 32 x 2,048 tokens",
        *("model", TRAIN, "seconds", "seconds", "softmax", "transnormer_t2"),
    ),
    _Headline("one more token after 65,536", "decode", STEP, "seconds", "seconds", CACHE, "norm"),
    _Headline("what decoding keeps of 65,536 tokens", "decode", STEP, "state", "bytes", CACHE, "norm"),
)


def bench_headline_table(results: Mapping[str, Result]) -> Table:
    """One line per comparison that was measured; softmax is torch's own, fused."""
    lines = []
    for row in ROWS:
        rows = pick_bench_rows(results[row.bench], **row.rows) if row.bench in results else []
        found = {each["case"]: each[row.key] for each in rows if row.key in each}
        if row.softmax in found and row.ours in found:
            theirs, ours = found[row.softmax], found[row.ours]
            lines.append(
                [
                    row.what,
                    _shown(theirs, row.unit),
                    f"{_shown(ours, row.unit)} ({row.ours})",
                    f"{_round(theirs / ours)}x",
                ]
            )
    columns = ["what", "softmax", "linear attention", "softmax needs"]
    return Table("softmax against linear attention", columns, lines, ("what",))


def _shown(value: float, unit: str) -> str:
    """A number in the largest unit that keeps it at least 1."""
    size, name = next(((size, name) for size, name in UNITS[unit] if value >= size), UNITS[unit][-1])
    return f"{_round(value / size)} {name}"


def _round(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
