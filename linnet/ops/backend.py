"""Which implementation of an op runs: `backend=`, else LINNET_BACKEND, else the best one that can."""

import os

from linnet.errors import InputError, UnsupportedError, unknown

NAMES = ("reference", "torch", "cpu", "triton")


def choose(op: str, available: tuple[str, ...], backend: str | None) -> str:
    """The backend to use for `op`; an impossible choice is an error, never a silent fallback."""
    name = os.environ.get("LINNET_BACKEND") or None if backend is None else backend
    if name is None:
        return "torch"
    if not isinstance(name, str) or name not in NAMES:
        source = "LINNET_BACKEND" if backend is None else "backend"
        raise InputError(f"{source}: {unknown('backend', name, NAMES)}")
    if name not in available:
        raise UnsupportedError(f"backend {name!r} does not implement {op}: one of {', '.join(available)}")
    return name
