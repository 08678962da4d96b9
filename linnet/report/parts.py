"""Files of a report's parts, read without trusting them: every field that the page uses is checked."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from linnet.errors import LinnetError
from linnet.storage import read_json_file


def read_report_part(path: Path, what: str, form: str, check: Callable[[Any], None]) -> dict[str, Any] | None:
    """The content of a file, or None if there is no file; raises unless its format is `form` and `check` accepts it."""
    if not path.exists():
        return None
    found = read_json_file(path)
    try:
        require_report_field(found["format"] == form, "format")
        check(found)
    except LinnetError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise LinnetError(f"{path} is not a file of {what} ({form}): {error or 'a field is wrong'}") from None
    return dict(found)


def require_report_field(fits: bool, name: str) -> None:
    """Raise ValueError, which names the field, unless it `fits`; unlike an assertion, also under `python -O`."""
    if not fits:
        raise ValueError(name)


def check_report_confusion(classes: Any, confusion: Any) -> None:
    """Raise unless these are names of classes, and counts with a row and a column for each of them, or none at all."""
    require_report_field(isinstance(classes, list) and all(isinstance(name, str) for name in classes), "classes")
    square = confusion == [] or [len(row) for row in confusion] == [len(classes)] * len(classes)
    require_report_field(square and all(type(n) is int and n >= 0 for row in confusion for n in row), "confusion")


def is_report_number(value: object) -> bool:
    """Whether the value is a finite number that fits into a float."""
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def report_confusion_rows(classes: Sequence[str], confusion: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """The rows of a confusion matrix in the form of the template, none if there is no matrix."""
    most = max(1, *map(max, confusion)) if confusion else 1
    return [
        {"name": own, "cells": [{"count": count, "part": round(count / most, 3)} for count in counts]}
        for own, counts in zip(classes, confusion, strict=bool(confusion))
    ]
