"""linnet: transformers with linear attention, whose cost grows linearly with length.

Public names load on first use, so that `import linnet` is fast and does not import torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "create_attention": "linnet.attention.base",
    "create_mixer": "linnet.attention.base",
    "create_model": "linnet.models.presets",
    "describe_attention": "linnet.attention.base",
    "list_models": "linnet.models.presets",
    "load_model": "linnet.models.loading",
    "MultiheadAttention": "linnet.attention.multihead",
    "replace_attention": "linnet.attention.replace",
}

__all__ = [
    "MultiheadAttention",
    "__version__",
    "create_attention",
    "create_mixer",
    "create_model",
    "describe_attention",
    "list_attention",
    "list_models",
    "load_model",
    "replace_attention",
]


def list_attention() -> list[str]:
    """Sorted names of the attention mechanisms."""
    from linnet.registry import ATTENTION

    return ATTENTION.names()


_MODULES = ("attention", "errors", "instruments", "models", "ops", "testing")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"linnet.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'linnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
