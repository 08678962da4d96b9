"""The cost of all-MiniLM-L6-v2 on long texts, with its softmax and with linear attention in its place."""

from collections.abc import Sequence
from typing import ClassVar

from linnet.bench.encoder import measure_encoder
from linnet.errors import LinnetError
from linnet.figures.figure import Figure, Series
from linnet.figures.table import Table
from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies.conversion import folder_of_encoder
from linnet.studies.records import Record
from linnet.studies.untrained import Measured

SYSTEMS = {"softmax": "softmax, the original", "hedgehog": "hedgehog", "lln_diag": "lln_diag"}
QUANTITIES = {"seconds": ("seconds of a forward pass", 1.0, "{:.2f}"), "memory": ("peak memory, MB", 1e6, "{:,.0f}")}


@STUDY.add("conversion-length")
class ConversionLength(Measured):
    """Time and memory of a forward pass, by length; the crossover of each system with the original."""

    title = "A converted encoder on long texts: time and memory of all-MiniLM-L6-v2"
    paper, item = "linnet", "conversion by length"
    picture = "seconds and peak memory of a forward pass against tokens"
    fields = frozenset({"tokens", "rows", "settings", "environment", "command"})
    lengths: ClassVar = (512, 1024, 2048, 4096, 8192)

    def runs(self, scale: str, seeds: int | None = None) -> list[str]:
        """One record per length."""
        return [f"n{tokens}" for tokens in self.lengths]

    def result(self, run: str, screen: Screen) -> Record:
        """All systems at one length."""
        tokens = int(run[1:])
        show = screen.work(f"reading {tokens:,} tokens")
        return measure_encoder(folder_of_encoder(), list(SYSTEMS), tokens, rounds=3, progress=show)

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """A table per quantity: one line per system, one column per length, and where it passes the original."""
        records = sorted(records, key=lambda record: record["tokens"])
        if any(record["environment"] != records[0]["environment"] for record in records):
            raise LinnetError("the lengths were measured on different machines, threads or versions")
        lengths = [f"{record['tokens']:,}" for record in records]
        tables = []
        for key, (title, unit, form) in QUANTITIES.items():
            rows = []
            for name, shown in SYSTEMS.items():
                values, base = _values(records, name, key), _values(records, "softmax", key)
                ratios = ["" if name == "softmax" else f" ({b / a:.2f}x)" for a, b in zip(values, base, strict=True)]
                cells = [form.format(value / unit) + ratio for value, ratio in zip(values, ratios, strict=True)]
                rows.append([shown, *cells, "-" if name == "softmax" else _crossover(records, values, base)])
            tables.append(Table(title, [title, *lengths, "less than the original from"], rows))
        about, busy = records[0]["environment"], [row["others"] or 0 for record in records for row in record["rows"]]
        return [
            *tables,
            "In brackets: how many times less than the original. Batch 1, float32, "
            f"{about['threads']} of {about['cores']} cores ({about['machine']}), torch {about['torch']}, linnet "
            f"{about['linnet']}; memory on one thread. The original uses torch's fused attention. The systems take "
            f"turns, and other programs kept up to {max(busy):.1f} cores busy: believe ratios, not seconds. Positions "
            f"beyond 512 are interpolated from the 512 of the model. Command: `{records[0]['command']}`.",
        ]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """Each quantity against the length."""
        records = sorted(records, key=lambda record: record["tokens"])
        x = [record["tokens"] for record in records]
        return [
            Figure(
                title,
                "tokens",
                title,
                [Series(shown, x, [v / unit for v in _values(records, name, key)]) for name, shown in SYSTEMS.items()],
                log_x=True,
                log_y=True,
                note=note,
            )
            for key, (title, unit, _) in QUANTITIES.items()
        ]


def _values(records: Sequence[Record], name: str, key: str) -> list[float]:
    """One quantity of a system at each length."""
    return [next(row[key] for row in record["rows"] if row["attention"] == name) for record in records]


def _crossover(records: Sequence[Record], values: Sequence[float], base: Sequence[float]) -> str:
    """The shortest measured length from which on the system needs less than the original."""
    lengths = [record["tokens"] for record in records]
    less = [mine < other for mine, other in zip(values, base, strict=True)]
    first = next((n for i, n in enumerate(lengths) if all(less[i:])), None)
    return f"not up to {lengths[-1]:,}" if first is None else f"{first:,} tokens"
