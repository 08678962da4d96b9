"""The errors that linnet raises: one line that names the field, the value and what is allowed."""

import difflib
from collections.abc import Iterable


class LinnetError(Exception):
    """Base of every error that linnet raises on purpose; the command line prints it as one line."""

    exit_code = 1


class InputError(LinnetError, ValueError):
    """The caller passed a wrong name, value, shape or file."""

    exit_code = 2


class UnsupportedError(InputError):
    """The request is valid, but this mechanism does not support it."""


MANY = 10  # if there are more names than this, only the nearest are printed
LISTED = {  # the command that prints all names of a kind
    "attention": "linnet list attention",
    "model": "linnet list models",
    "task": "linnet list tasks",
    "instrument": "linnet list instruments",
    "train.instruments": "linnet list instruments",
    "recipe": "linnet list recipes",
    "study": "linnet list studies",
    "run": "linnet reproduce NAME --dry-run",
}


def missing_extra_error_text(extra: str) -> str:
    """The command that installs an extra of linnet, for an error message."""
    return f"pip install '.[{extra}]' in a checkout, else pip install 'linnet-attention[{extra}]'"


def unknown_name_error(kind: str, name: object, allowed: Iterable[str], meant: str | None = None) -> InputError:
    """The error for an unknown name; it suggests the name that was probably `meant`, by default the nearest."""
    names = sorted(allowed)
    near = difflib.get_close_matches(str(name)[:200], names, n=5, cutoff=0.0)
    close = meant or next(iter(difflib.get_close_matches(str(name)[:200], near, n=1, cutoff=0.5)), None)
    hint = f"did you mean {close!r}? " if close else ""
    shown = repr(name) if len(repr(name)) <= 80 else f"{repr(name)[:60]}..."
    if len(names) <= MANY:
        return InputError(f"unknown {kind} {shown}: {hint}one of {', '.join(names)}")
    command = LISTED.get(kind, "linnet train smoke --dry-run")  # of keys, since it prints a whole configuration
    return InputError(f"unknown {kind} {shown}: {hint}near are {', '.join(near)}; `{command}` prints all {len(names)}")
