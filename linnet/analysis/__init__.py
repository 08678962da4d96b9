"""What attention and runs have to show: instruments, figures as data with two renderers, and the report.

The instruments load on first use, so that a report needs no torch.
"""

from importlib import import_module
from typing import Any

_INSTRUMENTS = "linnet.analysis.instruments"
_HOMES = {
    "attention_map": "attention_map",
    "calibrate": "moment_matching",
    "concentration": "concentration",
    "entropy": "entropy",
    "gradient_deviation": "gradient_deviation",
    "kernel_concentration": "kernel_concentration",
    "local_area": "local_score",
    "local_score": "local_score",
    "lognormal_fit": "lognormal_fit",
    "spectral_gap": "spectral_gap",
    "temperature": "temperature",
    "temperature_of": "temperature",
}

__all__ = [*sorted(_HOMES)]  # noqa: PLE0604  names of functions in the files of _HOMES


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{_INSTRUMENTS}.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'linnet.analysis' has no attribute {name!r}")
