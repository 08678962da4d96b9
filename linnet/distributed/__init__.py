"""Runs over many processes: ranks, and models and sequences that are spread over them; on torch.distributed alone.

Public names load on first use: the command line asks for its rank before it imports torch.
"""

from importlib import import_module
from typing import Any

__all__ = [
    "gather_sequence",
    "reduce_sequence_gradients",
    "scatter_sequence",
    "sequence_parallel",
    "sequence_parallel_model",
    "sum_over_sequence",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("linnet.distributed.sequence"), name)
    raise AttributeError(f"module 'linnet.distributed' has no attribute {name!r}")
