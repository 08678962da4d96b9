"""The answers part of a report: a confusion matrix, and the texts with the worst errors.

`linnet analyze` writes them to `analysis/answers.json` in the folder of a run that classifies or scores texts. The file
is read without trusting it: everything that the page uses is checked.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.data.labeled_texts import LabeledTexts
from linnet.errors import LinnetError
from linnet.storage import read_json_file

FORMAT = "linnet-answers-1"
WORST = 100  # texts with their errors
LONGEST = 2000  # characters of a text


def describe_answers(
    texts: LabeledTexts,
    classes: Sequence[str],
    answers: Sequence[str],
    errors: NDArray[np.float64],
    metrics: Mapping[str, Any],
) -> dict[str, Any]:
    """The worst errors of a split, largest first, and its `metrics`; a text with the right class is no error."""
    truth = [classes[int(label)] if classes else f"{label:g}" for label in texts.labels]
    order = [i for i in np.argsort(-errors, kind="stable") if not classes or answers[i] != truth[i]]
    worst = [
        {
            "row": texts.rows[i],
            "texts": [half[i][:LONGEST] for half in (texts.first, texts.second) if half is not None],
            "truth": truth[i],
            "answer": answers[i],
            "error": round(float(errors[i]), 4),
        }
        for i in order[:WORST]
    ]
    return {
        "format": FORMAT,
        "split": metrics["split"],
        "samples": len(texts),
        "wrong": len(order) if classes else None,
        "classes": list(classes),
        "confusion": metrics.get("confusion", []),
        "worst": worst,
    }


def read_answers(path: Path) -> dict[str, Any] | None:
    """The content of a file, or None if there is no file; raises if it is not what `describe_answers` returns."""
    if not path.exists():
        return None
    found = read_json_file(path)
    try:
        _check(found)
    except LinnetError:
        raise
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise LinnetError(f"{path} is not a file of answers ({FORMAT}): {error or 'a field is wrong'}") from None
    return dict(found)


def _check(found: Any) -> None:
    """Raise unless every field that the page uses is as it should be."""
    assert found["format"] == FORMAT, "format"
    assert isinstance(found["split"], str) and type(found["samples"]) is int, "split or samples"
    assert found["wrong"] is None or type(found["wrong"]) is int, "wrong"
    classes, confusion = found["classes"], found["confusion"]
    assert isinstance(classes, list) and all(isinstance(name, str) for name in classes), "classes"
    assert not confusion or np.asarray(confusion, np.int64).shape == (len(classes), len(classes)), "confusion"
    assert isinstance(found["worst"], list) and len(found["worst"]) <= WORST, "worst"
    for text in found["worst"]:
        assert all(isinstance(text[key], str) for key in ("row", "truth", "answer")), "row, truth or answer"
        assert isinstance(text["texts"], list) and all(isinstance(half, str) for half in text["texts"]), "texts"
        assert isinstance(text["error"], int | float) and math.isfinite(text["error"]), "error"


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
        rows = confusion_rows(found["classes"], found["confusion"])
        parts.append({"name": name, "about": about, "what": what, "rows": rows, "worst": found["worst"]})
    return parts


def confusion_rows(classes: Sequence[str], confusion: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """The rows of a confusion matrix in the form of the template, none if there is no matrix."""
    most = max(1, *map(max, confusion)) if confusion else 1
    return [
        {"name": own, "cells": [{"count": count, "part": round(count / most, 3)} for count in counts]}
        for own, counts in zip(classes, confusion, strict=bool(confusion))
    ]
