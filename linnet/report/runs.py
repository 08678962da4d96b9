"""Read runs from their folders, finished or still training, without trusting the content."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from linnet.config import read_config_toml
from linnet.errors import InputError, LinnetError
from linnet.instruments.analyze import check_analysis
from linnet.report.answers import read_answers
from linnet.report.pictures import read_pictures
from linnet.storage import (
    CheckpointError,
    check_run_links,
    check_run_metrics,
    checkpoint_steps,
    read_checkpoint,
    read_json_file,
    read_run_metrics,
)

Record = dict[str, Any]


@dataclass(frozen=True)
class SavedRun:
    """The contents of a run's files: `sample` is generated text, `cost` a measurement of its layers.

    `instruments` are the records of its attention during training, `analysis` is the result of `linnet analyze`, and
    `pictures` and `answers` what that shows of a run that classifies images or texts.
    """

    name: str
    config: Record
    environment: Record
    train: list[Record]
    valid: list[Record]
    timings: list[Record]
    sample: Record | None = None
    cost: Record | None = None
    instruments: list[Record] = field(default_factory=list)
    analysis: Record | None = None
    pictures: Record | None = None
    answers: Record | None = None

    def section(self, name: str) -> Record:
        """A table of the configuration, empty if it is missing."""
        found = self.config.get(name)
        return found if isinstance(found, dict) else {}

    def measure(self) -> str:
        """The validation metric: "accuracy" if it was recorded, else "perplexity"."""
        return "accuracy" if any("accuracy" in record for record in self.valid) else "perplexity"

    def best(self) -> tuple[int, float] | None:
        """(step, value) of the highest validation accuracy or the lowest perplexity."""
        key, sign = self.measure(), -1 if self.measure() == "accuracy" else 1
        found = [(record["step"], run_number(record.get(key))) for record in self.valid]
        return min(((step, y) for step, y in found if y is not None), key=lambda pair: sign * pair[1], default=None)

    def tokens(self) -> int | None:
        """Tokens read so far."""
        read = run_number(self.train[-1].get("tokens")) if self.train else None
        return None if read is None else round(read)

    def seconds(self) -> float | None:
        """Seconds of training and evaluation so far."""
        found = [run_number(record.get("seconds")) for record in self.timings]
        return sum(s for s in found if s is not None) if found else None

    def speed(self) -> float | None:
        """Median of the tokens per second in training."""
        found = [run_number(record.get("tokens_per_second")) for record in self.timings]
        known = [rate for rate in found if rate is not None]
        return median(known) if known else None

    def parameters(self) -> int | None:
        """Number of parameters, counted without allocating them; None for a model that linnet cannot build."""
        from linnet.models.backbone import build_backbone_on_meta, count_backbone_parameters
        from linnet.models.presets import preset_config

        try:
            return count_backbone_parameters(build_backbone_on_meta(preset_config(self.section("model"))))
        except (LinnetError, RuntimeError, ArithmeticError):  # torch raises these for absurd sizes
            return None


def run_number(value: object) -> float | None:
    """The value as a float if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer too large for a float
        return None


def read_report_runs(folders: Sequence[Path]) -> list[SavedRun]:
    """Read the runs in these folders; each is named after its folder, or by its path if two names are equal."""
    if not folders:
        raise InputError("no folder is given: a report needs at least one run")
    plain = [folder.absolute().name for folder in folders]
    names = plain if len(set(plain)) == len(plain) else [str(folder) for folder in folders]
    return [_read_run(folder, name) for folder, name in zip(folders, names, strict=True)]


def _read_run(folder: Path, name: str) -> SavedRun:
    """Read one run; a folder that is not a run is a one-line error."""
    if not (folder / "config.toml").is_file():
        what = "does not exist" if not folder.exists() else "is not a run: it has no config.toml"
        raise InputError(f"{folder} {what}")
    check_run_links(folder)
    _check_metrics(folder)
    records = read_run_metrics(folder / "metrics.jsonl")
    return SavedRun(
        name=name,
        config=read_config_toml(folder / "config.toml"),
        environment=_read_table(folder / "environment.json") or {},
        train=[record for record in records if record.get("split") == "train"],
        valid=[record for record in records if record.get("split") == "valid"],
        timings=read_run_metrics(folder / "timings.jsonl"),
        sample=_read_table(folder / "sample.json"),
        cost=_read_table(folder / "cost.json"),
        instruments=[record for record in records if record.get("split") == "instruments"],
        analysis=_read_analysis(folder / "analysis/analysis.json"),
        pictures=read_pictures(folder / "analysis/pictures.json"),
        answers=read_answers(folder / "analysis/answers.json"),
    )


def _check_metrics(folder: Path) -> None:
    """Raise if the metrics, unless there are none, are not those that the newest readable checkpoint was saved with."""
    for step in reversed(checkpoint_steps(folder / "checkpoints") if (folder / "metrics.jsonl").exists() else []):
        with contextlib.suppress(CheckpointError):  # damaged, or removed by the run since
            saved = read_checkpoint(folder / f"checkpoints/step-{step}", optimizer=False, model=False)
            check_run_metrics(folder / "metrics.jsonl", saved.state.get("metrics"))
            return


def _read_analysis(path: Path) -> Record | None:
    """The analysis in a file, or None if there is no file; the error for an invalid one names the file."""
    try:
        return check_analysis(read_json_file(path)) if path.exists() else None
    except LinnetError as error:
        raise LinnetError(f"{path}: {error}") from None


def _read_table(path: Path) -> Record | None:
    """The table in a JSON file, or None if there is no file."""
    if not path.exists():
        return None
    content = read_json_file(path)
    if not isinstance(content, dict):
        raise LinnetError(f"{path} is not a table")
    return content
