"""The report: one HTML page about one run or several, which opens offline and loads nothing from outside.

It is read from the files of run folders, whose text nobody has checked: all of it is escaped, and the page allows no
script but its own two, which it names by their hash.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from linnet import __version__
from linnet.analysis.costs import cost_figures, cost_table
from linnet.analysis.figures import COLORS, Figure, Series, to_plotly
from linnet.config import read_toml
from linnet.errors import InputError, LinnetError
from linnet.storage import read_json, read_metrics, write_text

TEMPLATES = Path(__file__).parent / "templates"
Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What the files of a run say."""

    name: str
    config: Record
    environment: Record
    train: list[Record]
    valid: list[Record]
    timings: list[Record]
    sample: Record | None
    cost: Record | None


def write_report(folders: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page about the runs in `folders`; `out` is `report.html` in the folder of a single run."""
    runs = read_runs([Path(folder) for folder in folders])
    if out is None:
        out = Path(folders[0] if len(folders) == 1 else ".") / "report.html"
    write_text(out, render(runs))
    return Path(out)


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in these folders, each named by its folder, or by its path where two folders have one name."""
    if not folders:
        raise InputError("no run is named: a report is about at least one")
    plain = [folder.absolute().name for folder in folders]
    names = plain if len(set(plain)) == len(plain) else [str(folder) for folder in folders]
    return [_read_run(folder, name) for folder, name in zip(folders, names, strict=True)]


def _read_run(folder: Path, name: str) -> Run:
    if not (folder / "config.toml").is_file():
        what = "does not exist" if not folder.exists() else "is not a run: it has no config.toml"
        raise InputError(f"{folder} {what}")
    records = read_metrics(folder / "metrics.jsonl")
    return Run(
        name=name,
        config=read_toml(folder / "config.toml"),
        environment=_read_optional(folder / "environment.json") or {},
        train=[record for record in records if record.get("split") == "train"],
        valid=[record for record in records if record.get("split") == "valid"],
        timings=read_metrics(folder / "timings.jsonl"),
        sample=_read_optional(folder / "sample.json"),
        cost=_read_optional(folder / "cost.json"),
    )


def _read_optional(path: Path) -> Record | None:
    """The table in a JSON file, or None where there is no file."""
    if not path.exists():
        return None
    content = read_json(path)
    if not isinstance(content, dict):
        raise LinnetError(f"{path} is not a table")
    return content


def render(runs: Sequence[Run]) -> str:
    """The page."""
    try:
        import jinja2
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise InputError(f"a report needs {error.name}: pip install 'linnet[report]'") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = [get_plotlyjs(), (TEMPLATES / "report.js").read_text()]
    return environment.get_template("report.html").render(
        version=__version__,
        runs=[_summary(run, COLORS[i % len(COLORS)]) for i, run in enumerate(runs)],
        curves=[_chart(figure) for figure in curves(runs)],
        costs=[_cost(run) for run in runs if run.cost is not None],
        samples=[(run.name, run.sample) for run in runs if run.sample is not None],
        tables=[
            ("Configuration", _rows([run.config for run in runs])),
            ("Environment", _rows([run.environment for run in runs])),
        ],
        style=Markup((TEMPLATES / "report.css").read_text()),  # noqa: S704  our own files
        scripts=[Markup(script) for script in scripts],  # noqa: S704
        hashes=" ".join(f"'sha256-{_hash(script)}'" for script in scripts),
    )
