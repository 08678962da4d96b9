"""TransNormer's Table 7: speed and memory of the Long Range Arena's models as sequences get longer."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from linnet.bench.lra import LENGTHS, measure_lra_speed
from linnet.errors import LinnetError
from linnet.figures.figure import Figure, Series
from linnet.figures.table import Table
from linnet.models.presets import preset
from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies.base import TRANSNORMER
from linnet.studies.records import Record, record_resolved_model
from linnet.studies.systems import SYSTEMS, split_systems
from linnet.studies.untrained import Measured

KINDS = ("inference", "training")


@STUDY.add("transnormer-table7")
class Table7(Measured):
    """Steps per second in inference and training, and peak memory of a training step, by length."""

    title = "Speed and memory of the Long Range Arena's models: the shape of TransNormer's Table 7"
    paper, item = TRANSNORMER, "Table 7"
    picture = "steps per second against tokens"
    fields = frozenset({"tokens", "rows", "batch", "others", "environment", "command"})
    systems: ClassVar[Mapping[str, str]] = SYSTEMS
    lengths: ClassVar[Sequence[int]] = LENGTHS

    def runs(self, scale: str, seeds: int | None = None) -> list[str]:
        """One record per length."""
        return [f"n{tokens}" for tokens in self.lengths]

    def result(self, run: str, screen: Screen) -> Record:
        """All systems at one length."""
        tokens, presets = int(run[1:]), {name: f"{system}_lra" for name, system in self.systems.items()}
        show = screen.work(f"measuring {len(presets)} systems at {tokens:,} tokens")
        models = {name: record_resolved_model(preset(model, max_length=tokens)) for name, model in presets.items()}
        return {**measure_lra_speed(presets, tokens, rounds=5, progress=show), "models": models}

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """A table per quantity: one line per system, one column per length."""
        records = sorted(records, key=lambda record: record["tokens"])
        names, lengths = _systems(records), [f"{record['tokens']:,}" for record in records]
        tables = []
        for kind in KINDS:
            rows = [[name, *(_speed(record, name, kind) for record in records)] for name in names]
            tables.append(Table(kind, [f"{kind}, steps per second", *lengths], rows))
        rows = [[name, *(_memory(record, name) for record in records)] for name in names]
        tables.append(Table("memory", ["memory of a training step, MB", *lengths], rows))
        return [*tables, _note(records)]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """Steps per second against length; many systems by family, each beside all the others."""
        records = sorted(records, key=lambda record: record["tokens"])
        lines: dict[str, dict[str, Series]] = {kind: {} for kind in KINDS}
        for name in _systems(records):
            known = [(record["tokens"], row) for record in records if (row := _row(record, name))]
            for kind in KINDS:
                lines[kind][name] = Series(name, [x for x, _ in known], [row[kind] for _, row in known])
        return [
            Figure(
                f"{kind.capitalize()}: {title}" if title else kind.capitalize(),
                "tokens",
                "steps per second",
                [lines[kind][name] for name in names],
                log_x=True,
                log_y=True,
                note=note,
                behind=[line for name, line in lines[kind].items() if name not in names],
                guides=(-1, -2),
            )
            for title, names in split_systems(_systems(records)).items()
            for kind in KINDS
        ]


def _note(records: Sequence[Record]) -> str:
    """How it was measured; raises if the lengths were measured differently."""
    about, busy = records[0]["environment"], [record["others"] for record in records if record["others"] is not None]
    for record in records:
        if (record["environment"], record["batch"]) != (about, records[0]["batch"]):
            both = f"{records[0]['tokens']:,} and {record['tokens']:,} tokens"
            raise LinnetError(f"{both} were measured on different machines, threads, versions or batches")
    others = f"Other programs kept up to {max(busy):.1f} cores busy meanwhile. " if busy else ""
    return (
        f"Batch {records[0]['batch']}, {about['threads']} of {about['cores']} cores ({about['machine']}), "
        f"torch {about['torch']}, linnet {about['linnet']}. Medians; the systems take turns. Memory was "
        f"measured on one thread. In brackets: relative to vanilla. {others}Command: `{records[0]['command']}`."
    )


def _systems(records: Sequence[Record]) -> list[str]:
    """The systems at any length, each once."""
    return list(dict.fromkeys(row["row"] for record in records for row in record["rows"]))


def _row(record: Record, name: str) -> Record | None:
    """The measurement of one system at one length; None if there is none."""
    return next((row for row in record["rows"] if row["row"] == name), None)


def _speed(record: Record, name: str, kind: str) -> str:
    """Steps per second, and relative to vanilla."""
    mine, vanilla = _row(record, name), _row(record, "vanilla")
    if mine is None:
        return "-"
    ratio = f" ({mine[kind] / vanilla[kind]:.2f})" if vanilla and name != "vanilla" else ""
    return f"{mine[kind]:.3g}{ratio}"


def _memory(record: Record, name: str) -> str:
    """Megabytes."""
    row = _row(record, name)
    return f"{row['memory'] / 1e6:,.0f}" if row else "-"
