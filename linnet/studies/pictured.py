"""The shared part of the studies of images: systems, accuracy, and readings of attention by layer."""

import math
import statistics
from collections.abc import Sequence
from typing import Any, ClassVar

from linnet.figures.figure import Figure, Series
from linnet.figures.heatmap import Grid, pack_heatmap, unpack_heatmap
from linnet.figures.table import Table
from linnet.instruments.analyze import analysis_by_head, analyze_views
from linnet.instruments.attention_map import pooled_attention_map
from linnet.instruments.base import instrument_views_of_model
from linnet.studies.claims import Claim, Comparison, claims_of_records
from linnet.studies.records import Record, mean_core_seconds, record_versions, records_by_row
from linnet.studies.trained import Row, Trained
from linnet.studies.watched import watched_local_area, watched_mean_text
from linnet.train.run import Run
from linnet.train.watch import watch_blocks

PICTURES = 16  # of the validation split, for the instruments
INSTRUMENTS = ("local_score", "entropy", "temperature", "spectral_gap", "moment_matching")
SYSTEMS = {  # name in the table: beginning of the preset's name, changes
    "softmax": ("vanilla",),
    "1+elu": ("elu",),
    "norm": ("norm",),
    "T2": ("transnormer_t2",),
    "lln": ("lln",),
    "lln_diag": ("lln_diag",),
    "norm without positions": ("norm", "model.options.norm.positions=none"),
    "performer": ("performer",),
    "nystromformer": ("nystromformer",),
    "linformer": ("linformer",),
}
FIRST = ("softmax", "1+elu", "norm", "T2", "lln", "lln_diag")  # those that ran; the other rows are planned
READINGS = (  # column, instrument, value
    ("local area", "local_score", "area"),
    ("entropy, share of the largest", "entropy", "relative"),
    ("temperature", "temperature", "weights"),
    ("spectral gap", "spectral_gap", "gap"),
    ("Var ln A along rows", "moment_matching", "variance"),
    ("of q, k", "moment_matching", "target"),
)
CONFOUND = "T2 and norm also have another norm and a gated FFN"
MORE_LOCAL = (
    Comparison("Softmax attention is more local than 1+elu, which dilutes", "softmax", "1+elu"),
    Comparison("LLN is more local than 1+elu", "lln", "1+elu"),
    Comparison("T2 is more local than 1+elu", "T2", "1+elu", CONFOUND),
)


def picture_rows(*names: str, scales: tuple[str, ...] = ("cpu", "paper")) -> tuple[Row, ...]:
    """The rows of these systems."""
    return tuple(Row(name, SYSTEMS[name][0], SYSTEMS[name][1:], scales=scales) for name in names)


class Pictured(Trained):
    """Vision transformers that differ in their attention: accuracy, and whether attention dilutes on images."""

    picture = "accuracy, and attention by layer"
    data: ClassVar[str]  # the name of the data set, for the page

    def readings(self, run: Run, metrics: list[dict[str, Any]]) -> Record:
        """The numbers of the instruments on images of the validation split, and maps of the first of them."""
        views = instrument_views_of_model(run.load("best"), watch_blocks(run.task, PICTURES))
        found = analyze_views(views, INSTRUMENTS)
        for i in (0, -1):
            heads = pooled_attention_map(views[i], signed=False)[0]  # signs would cancel in the mean over heads
            found["layers"][i]["map"] = pack_heatmap(heads.mean(dim=0).numpy())
        return {"analysis": found}

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system, then one per system and quantity by layer."""
        rows = []
        for name, runs in _by_accuracy(records).items():
            cells = [watched_mean_text(runs, instrument, value) for _, instrument, value in READINGS]
            rows.append([name, f"{runs[0]['parameters']:,}", _accuracy_text(runs), *cells])
        columns = ["system", "parameters", "test accuracy, %", *(column for column, _, _ in READINGS)]
        return [Table(self.title, columns, rows), self.note(records), self._by_layer(records)]

    def note(self, records: Sequence[Record]) -> str:
        """The training, the meaning of the columns, and the command."""
        first = records[0]
        train, data, test = first["config"]["train"], first["config"]["data"], first["test"]
        core = mean_core_seconds(records) / 60
        return (
            f"{self.data}: {train['steps']:,} updates of {train['batch']} images, {test['context']} patches of "
            f"{data['patch']} x {data['patch']} pixels each, on one thread; {core:.1f} minutes per run on a shared "
            f"machine. Accuracy: {test['samples']:,} test images at the best checkpoint by validation accuracy, with "
            "the 95 % interval of their number and, of several seeds, the range. Readings: means over layers, heads "
            f"and {PICTURES} validation images. A neighborhood grows by the distance between patches; the local area "
            f"of uniform attention is 0.5. {record_versions(first['environment'])}. Command: `{first['command']}`."
        )

    def _by_layer(self, records: Sequence[Record]) -> Table:
        """Local area and entropy of every layer, from the first to the last."""
        layers = max(len(record["analysis"]["layers"]) for record in records)
        rows = []
        for name, runs in _by_accuracy(records).items():
            for column, instrument, value in READINGS[:4]:
                cells = [watched_mean_text(runs, instrument, value, slice(i, i + 1)) for i in range(layers)]
                rows.append([name, column, *cells])
        return Table("by layer", ["system", "reading", *(f"layer {i}" for i in range(layers))], rows)

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """Accuracy against updates, then local area, entropy, temperature and gap against the layer."""
        curves = []
        for name, runs in _by_accuracy(records).items():
            points: dict[int, list[float]] = {}
            for entry in (entry for run in runs for entry in run["curve"] if entry["split"] == "valid"):
                points.setdefault(entry["step"], []).append(100 * entry["accuracy"])
            curves.append(Series(name, list(points), [statistics.fmean(ys) for ys in points.values()]))
        figures = [Figure("Validation accuracy", "update", "%", curves, note=note)]
        for column, instrument, value in READINGS[:4]:
            lines = []
            for name, runs in _by_accuracy(records).items():
                layers = list(zip(*(run["analysis"]["layers"] for run in runs), strict=True))
                found = [[x for layer in same for x in analysis_by_head(layer, instrument, value)] for same in layers]
                known = [(i, statistics.fmean(xs)) for i, xs in enumerate(found) if xs]
                if known:
                    lines.append(Series(name, [i for i, _ in known], [y for _, y in known]))
            figures.append(Figure(column.capitalize(), "layer", column, lines, log_y=instrument == "temperature"))
        return figures

    def maps(self, records: Sequence[Record]) -> Grid:
        """The maps of the first and last layer, of each system's first seed."""
        grid: list[tuple[str, dict[str, Any]]] = [("first layer", {}), ("last layer", {})]
        for name, (run, *_) in _by_accuracy(records).items():
            layers = run["analysis"]["layers"]
            for (_, maps), layer in zip(grid, (layers[0], layers[-1]), strict=True):
                maps[name] = unpack_heatmap(layer["map"])
        return grid

    def about_maps(self, records: Sequence[Record]) -> tuple[int, str]:
        """The number of patches, and how `readings` made the maps."""
        return records[0]["analysis"]["length"], "patches window by window; absolute values, mean over heads"

    def claims(self, records: Sequence[Record]) -> list[Claim]:
        """The papers' claims about text, tested on images."""
        return claims_of_records(MORE_LOCAL, records, watched_local_area, digits=3)


def _by_accuracy(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by row, the best mean accuracy first."""
    rows = records_by_row(records)
    return dict(sorted(rows.items(), key=lambda row: -statistics.fmean(run["test"]["accuracy"] for run in row[1])))


def _accuracy_text(runs: Sequence[Record]) -> str:
    """Mean accuracy in percent, half the 95 % interval for so many test images, and the range of several seeds."""
    found = [100 * run["test"]["accuracy"] for run in runs]
    mean, count = statistics.fmean(found), runs[0]["test"]["samples"]
    half = 1.96 * math.sqrt(mean * (100 - mean) / count)
    several = f" ({min(found):.1f} to {max(found):.1f}, {len(found)} seeds)" if len(found) > 1 else ""
    return f"{mean:.1f} ± {half:.1f}{several}"
