"""The answers part of a report: a confusion matrix, and the texts with the worst errors.

`linnet analyze` writes them to `analysis/answers.json` in the folder of a run that classifies or scores texts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linnet.report.parts import (
    check_report_confusion,
    is_report_number,
    read_report_part,
    report_confusion_rows,
    require_report_field,
)

FORMAT = "linnet-answers-1"
WORST = 100  # texts with their errors
LONGEST = 2000  # characters of a text


def describe_answers(
    judged: Sequence[Mapping[str, Any]], classes: Sequence[str], metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """The worst errors of a split, largest first, and its `metrics`; a text with the right class is no error.

    `judged` has the `row`, `texts`, `truth`, `answer` and `error` of each text.
    """
    wrong = [text for text in judged if not classes or text["answer"] != text["truth"]]
    worst = sorted(wrong, key=lambda text: -text["error"])[:WORST]
    return {
        "format": FORMAT,
        "split": metrics["split"],
        "samples": len(judged),
        "wrong": len(wrong) if classes else None,
        "classes": list(classes),
        "confusion": metrics.get("confusion", []),
        "worst": [
            {**text, "texts": [half[:LONGEST] for half in text["texts"]], "error": round(text["error"], 4)}
            for text in worst
        ],
    }


def read_answers(path: Path) -> dict[str, Any] | None:
    """The content of a file, or None if there is no file; raises if it is not what `describe_answers` returns."""
    return read_report_part(path, "answers", FORMAT, _check)


def _check(found: Any) -> None:
    """Raise unless every field that the page uses is as it should be."""
    require_report_field(isinstance(found["split"], str) and type(found["samples"]) is int, "split or samples")
    require_report_field(found["wrong"] is None or type(found["wrong"]) is int, "wrong")
    check_report_confusion(found["classes"], found["confusion"])
    require_report_field(isinstance(found["worst"], list) and len(found["worst"]) <= WORST, "worst")
    for text in found["worst"]:
        named = all(isinstance(text[key], str) for key in ("row", "truth", "answer"))
        require_report_field(named, "row, truth or answer")
        halves = text["texts"]
        require_report_field(isinstance(halves, list) and all(isinstance(half, str) for half in halves), "texts")
        require_report_field(is_report_number(text["error"]), "error")


def answer_parts(named: Sequence[tuple[str, dict[str, Any] | None]]) -> list[dict[str, Any]]:
    """The answers of each run in the form of the template."""
    parts = []
    for name, found in named:
        if found is None:
            continue
        what = "distance" if found["wrong"] is None else "loss in nats"
        about = f"{found['samples']:,} texts of the {found['split']} split"
        if found["wrong"] is not None:
            about = f"{found['wrong']:,} of {about} are answered wrongly"
        rows = report_confusion_rows(found["classes"], found["confusion"])
        parts.append({"name": name, "about": about, "what": what, "rows": rows, "worst": found["worst"]})
    return parts
