"""The report: one HTML page about one run or several, which opens offline and loads nothing.

It is made from the files of run folders, which are not trusted: all text is escaped, and the page allows only its own
scripts, by their hashes.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from linnet import __version__
from linnet.bench.costs import layer_cost_figures, layer_cost_note, layer_cost_tables
from linnet.errors import InputError, missing_extra_error_text
from linnet.figures.colors import VALIDATION
from linnet.figures.figure import Figure, Series, figure_to_plotly
from linnet.report.answers import answer_parts
from linnet.report.attention import (
    report_attention_figures,
    report_attention_in_training,
    report_attention_maps,
    report_attention_readings,
    report_gradient_figures,
)
from linnet.report.pictures import picture_parts
from linnet.report.runs import SavedRun, read_report_runs, run_number
from linnet.storage import IDLE, clean_temporary_files, write_text_file

TEMPLATES = Path(__file__).parent / "templates"
NOTHING = "–"
CURVES = (  # title, label, records, key
    ("Loss", "nats per token", "both", "loss"),
    ("Validation perplexity", "per token", "valid", "perplexity"),
    ("Validation accuracy", "share of the answers", "valid", "accuracy"),
    ("Learning rate", "", "train", "lr"),
    ("Gradient norm", "before clipping", "train", "grad_norm"),
)


def write_report_page(
    folders: Sequence[str | Path], out: str | Path | None = None, samples: Sequence[dict[str, Any] | None] = ()
) -> Path:
    """Write the page about the runs in `folders`; `out` defaults to `report.html`, in the folder of a single run.

    `samples` holds a generated text per run, or None, for runs that have none in their folders.
    """
    runs = read_report_runs([Path(folder) for folder in folders])
    if samples:
        pairs = zip(runs, samples, strict=True)
        runs = [replace(run, sample=run.sample or sample) for run, sample in pairs]
    if out is None:
        out = Path(folders[0] if len(folders) == 1 else ".") / "report.html"
    clean_temporary_files(Path(out).absolute().parent, IDLE, shared=True)
    write_text_file(out, _render_page(runs))
    return Path(out)


def check_report_page_extra() -> None:
    """Raise if a package that a report needs is not installed."""
    for package in ("jinja2", "plotly"):
        if find_spec(package) is None:
            raise InputError(f"a report needs {package}: {missing_extra_error_text('report')}")


def _render_page(runs: Sequence[SavedRun]) -> str:
    """The HTML of the page."""
    check_report_page_extra()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    pages = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    parts = {
        "Cost": [run.cost for run in runs],
        "Text": [run.sample for run in runs],
        "Pictures": [run.pictures for run in runs],
        "Answers": [run.answers for run in runs],
    }
    extra = [name for name, found in parts.items() if any(part is not None for part in found)]
    names = ["report", *(["pictures"] if "Pictures" in extra else [])]
    styles = [*names, *(["confusion"] if {"Pictures", "Answers"} & set(extra) else [])]
    scripts = [get_plotlyjs(), *((TEMPLATES / f"{name}.js").read_text() for name in names)]
    return pages.get_template("report.html").render(
        version=__version__,
        tabs=["Training", "Attention", *extra, "Configuration", "Environment"],
        runs=[_summary(run) for run in runs],
        curves=[_chart(figure) for figure in report_page_curves(runs)],
        gradients=[_chart(figure) for figure in report_gradient_figures(runs)],
        watched=[_chart(figure) for figure in report_attention_in_training(runs)],
        layers=[_chart(figure) for figure in report_attention_figures(runs)],
        readings=report_attention_readings(runs),
        maps=report_attention_maps(runs),
        costs=[_cost(run) for run in runs if run.cost is not None],
        samples=[_sample(run.name, run.sample) for run in runs if run.sample is not None],
        tables=[
            ("Configuration", compare_report_tables([run.config for run in runs])),
            ("Environment", compare_report_tables([run.environment for run in runs])),
        ],
        pictures=picture_parts([(run.name, run.pictures) for run in runs]),
        answers=answer_parts([(run.name, run.answers) for run in runs]),
        style=Markup(
            "".join((TEMPLATES / f"{name}.css").read_text() for name in styles)
        ),  # safe: linnet's own files, and plotly's
        scripts=[Markup(script) for script in scripts],
        hashes=" ".join(f"'sha256-{_hash(script)}'" for script in scripts),
    )


def _hash(script: str) -> str:
    """The hash of a script in the form of a content security policy."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _summary(run: SavedRun) -> dict[str, Any]:
    """The head of the page: what was trained, how far, and the most important numbers."""
    about = (run.config.get("task"), run.section("model").get("preset"), run.section("data").get("corpus"))
    return {
        "name": run.name,
        "state": _state(run),
        "about": [_text(part) for part in about if part is not None],
        "tiles": _tiles(run),
    }


def _state(run: SavedRun) -> str:
    """The progress of a run, in words."""
    steps = run_number(run.section("train").get("steps"))
    if not run.train:
        return "no step recorded yet"
    step = run.train[-1]["step"]
    return f"at step {step:,} of {steps:,.0f}" if steps is not None and step < steps else f"finished, {step:,} steps"


def _tiles(run: SavedRun) -> list[tuple[str, str, str]]:
    """Label, value and remark of each number."""
    best, parameters, tokens, seconds, speed = run.best(), run.parameters(), run.tokens(), run.seconds(), run.speed()
    return [
        (f"Validation {run.measure()}", f"{best[1]:.4g}", f"best, at step {best[0]:,}")
        if best
        else (f"Validation {run.measure()}", NOTHING, "not evaluated yet"),
        ("Parameters", NOTHING if parameters is None else _short(parameters), _whole(parameters)),
        ("Tokens read", NOTHING if tokens is None else _short(tokens), _whole(tokens)),
        ("Seconds", NOTHING if seconds is None else f"{seconds:,.0f}", "training and evaluation"),
        ("Tokens per second", NOTHING if speed is None else f"{speed:,.0f}", "median, while training"),
    ]


def _short(value: float) -> str:
    """1234567 as "1.23 M"."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def _whole(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def report_page_curves(runs: Sequence[SavedRun]) -> list[Figure]:
    """What the training loop recorded, one figure per quantity; a run without values has no line there.

    The loss has a line of training and one of validation per run.
    """
    figures = []
    measures = {run.measure() for run in runs}
    for title, label, split, key in CURVES:
        if split == "valid" and key not in measures:
            continue
        series = []
        for run in runs:
            parts = {run.name: run.valid if split == "valid" else run.train}
            if split == "both" and run.valid:
                parts[f"{run.name}{VALIDATION}"] = run.valid
            for name, records in parts.items():
                y = [run_number(record.get(key)) for record in records]
                series.append(Series(name, [record["step"] for record in records], y))
        values = [y for line in series for y in line.y if y is not None]
        wide = key not in ("lr", "accuracy") and bool(values) and max(values) > 10 * min(values) > 0
        figures.append(Figure(title, "step", label, series, log_y=wide))
    return figures


def _chart(figure: Figure) -> dict[str, Any]:
    """A figure in the form of the template; `plot` is None if there is nothing to draw."""
    empty = not any(y is not None for series in figure.series for y in series.y)
    return {"title": figure.title, "plot": None if empty else figure_to_plotly(figure)}


def _cost(run: SavedRun) -> dict[str, Any]:
    """The measured cost of a run's layers."""
    charts = [_chart(figure) for figure in layer_cost_figures(run.cost)]
    return {
        "name": run.name,
        "charts": charts,
        "tables": layer_cost_tables(run.cost),
        "note": layer_cost_note(run.cost),
    }


def _sample(name: str, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Text that a run generated: prompt, continuation and sampling settings."""
    prompt, text = _text(sample.get("prompt", "")), _text(sample.get("text", ""))
    how = [f"{key.replace('_', ' ')} {_text(value)}" for key, value in sample.items() if key not in ("prompt", "text")]
    return {"name": name, "prompt": prompt, "text": text.removeprefix(prompt), "how": ", ".join(how)}


def compare_report_tables(tables: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tables side by side: groups of rows, one row per key that any table has, marked if its values differ."""
    flat = [dict(_flatten(table)) for table in tables]
    groups: dict[str, list[dict[str, Any]]] = {}
    for key in dict.fromkeys(key for table in flat for key in table):
        group, _, name = key.rpartition(".")
        values = [_text(table[key]) if key in table else NOTHING for table in flat]
        groups.setdefault(group, []).append({"key": name, "values": values, "differs": len(set(values)) > 1})
    return [{"name": name, "rows": rows} for name, rows in groups.items()]


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ("train.lr", 0.001) and so on; plain values come before tables."""
    for key, value in sorted(table.items(), key=lambda item: isinstance(item[1], Mapping)):
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _text(value: object) -> str:
    """A configuration value, formatted for people."""
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
