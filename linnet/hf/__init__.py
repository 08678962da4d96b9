"""Hugging Face: linnet's models as Transformers models, and linnet's attention inside those of Transformers.

`import linnet.hf` registers the Auto classes. Only this folder imports transformers; nothing else in linnet needs it.
"""

from linnet.errors import InputError, missing_extra_error_text

try:
    import transformers as _transformers  # noqa: F401  the files below need it
except ImportError:
    raise InputError(f"linnet.hf needs transformers: {missing_extra_error_text('hf')}") from None

from linnet.hf.cache import DecoderCache, LinnetCache
from linnet.hf.config import LinnetConfig
from linnet.hf.gguf import load_gguf
from linnet.hf.interface import register_interface
from linnet.hf.load import load
from linnet.hf.modeling import (
    LinnetForCausalLM,
    LinnetForMaskedLM,
    LinnetForSequenceClassification,
    LinnetModel,
    register_auto_classes,
)
from linnet.hf.patch import patch, unpatch
from linnet.hf.positions import stretch_positions

__all__ = [
    "DecoderCache",
    "LinnetCache",
    "LinnetConfig",
    "LinnetForCausalLM",
    "LinnetForMaskedLM",
    "LinnetForSequenceClassification",
    "LinnetModel",
    "load",
    "load_gguf",
    "patch",
    "stretch_positions",
    "unpatch",
]

register_auto_classes()
register_interface()
