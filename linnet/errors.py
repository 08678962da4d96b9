"""The errors that linnet raises: one line that names the field, the value and what is allowed."""

import difflib
from collections.abc import Iterable


class LinnetError(Exception):
    """Base of every error that linnet raises on purpose; the command line prints it as one line."""

    exit_code = 1


class InputError(LinnetError, ValueError):
    """Something the caller gave is wrong: a name, a value, a shape, a file."""

    exit_code = 2


class UnsupportedError(InputError):
    """The request is well formed, but this mechanism cannot do it."""


def install_extra(extra: str) -> str:
    """How to install an extra of linnet, for an error message."""
    return f"pip install '.[{extra}]' in a checkout, else pip install 'linnet-attention[{extra}]'"


def unknown(kind: str, name: object, allowed: Iterable[str]) -> InputError:
    """The error for a name that does not exist; it suggests the nearest one that does."""
    names = sorted(allowed)
    near = difflib.get_close_matches(str(name)[:200], names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    shown = repr(name) if len(repr(name)) <= 80 else f"{repr(name)[:60]}..."
    return InputError(f"unknown {kind} {shown}: {hint}one of {', '.join(names)}")
