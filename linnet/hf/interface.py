"""linnet in the attention interface of Transformers: one function that every patched layer calls.

A layer that holds a linnet core under `linnet` uses it; the others keep their softmax. Both read a mask (B,N): a mask
function is registered too, because Transformers passes no mask at all to an attention that has none.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.utils import logging

from linnet.attention.base import Core
from linnet.errors import InputError, UnsupportedError
from linnet.hf.cache import cache_of_keys

NAME = "linnet"
_FOREIGN = ("softcap", "s_aux", "position_bias")  # changes to the scores that only some models request


class Call(NamedTuple):
    """One call of the attention of a model: tensors (B,H,N,D), as the core reads them."""

    module: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None
    window: int | None  # keys farther away than this are not seen
    causal: bool
    core: Core | None


_CALLS: ContextVar[list[Call] | None] = ContextVar("linnet_calls", default=None)


def attend_through_interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """o (B,N,H,D) of q (B,H,N,D) and of k and v, which may have fewer heads; Transformers calls this."""
    for name in _FOREIGN:
        if others.get(name) is not None:
            raise UnsupportedError(f"{type(module).__name__} passes {name}, which changes the scores of softmax")
    if attention_mask is not None and attention_mask.dim() != 2:
        raise UnsupportedError(f"attention_mask has {attention_mask.dim()} axes: linnet reads (batch, tokens)")
    times = query.shape[1] // key.shape[1]
    k, v = (x if times == 1 else x.repeat_interleave(times, dim=1) for x in (key, value))
    plain = query.shape[3] ** -0.5
    q = query if scaling is None or abs(scaling - plain) < 1e-9 else query * (scaling / plain)
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    window = None if sliding_window is None else int(sliding_window) - 1  # their window counts the token itself
    core = getattr(module, NAME, None)
    calls = None if torch.compiler.is_compiling() else _CALLS.get()
    if calls is not None:
        calls.append(Call(module, q, k, v, attention_mask, window, causal, core))
    cached = cache_of_keys(key) if core is not None and core.causal else None
    if core is not None and q.shape[2] != k.shape[2]:
        raise UnsupportedError(f"{type(module).__name__} keeps keys and values: linnet's attention carries a state")
    if core is not None and cached is not None:
        cache, layer = cached
        o = cache.attend(layer, core, q, k, v, attention_mask)
    elif core is None:
        o = attend_softmax(q, k, v, attention_mask, window, causal, dropout)
    else:
        o = core(q, k, v, key_mask=attention_mask)
    return o.transpose(1, 2).contiguous(), None


def attend_softmax(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, window: int | None, causal: bool, dropout: float
) -> Tensor:
    """The attention of a layer that keeps its softmax."""
    N = q.shape[2]
    seen = None if key_mask is None else key_mask[:, None, None, :]  # (B, 1, 1, N)
    if window is not None or causal:
        i = torch.arange(N, device=q.device)
        gap = i[:, None] - i
        near = gap.abs() <= window if window is not None else torch.ones_like(gap, dtype=torch.bool)
        near = near & (gap >= 0) if causal else near  # (N, N)
        seen = near if seen is None else near & seen
    if seen is not None:
        seen = seen | ~seen.any(dim=-1, keepdim=True)  # a padded row without any key must stay finite
    return scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)


def _keep_mask(*, attention_mask: Tensor | None = None, **others: Any) -> Tensor | None:
    """The mask (B,N) as it is; Transformers passes every argument by name."""
    return attention_mask


def register_interface() -> None:
    """Register the attention and its mask under one name; without the mask, padding would silently leak."""
    AttentionInterface.register(NAME, attend_through_interface)
    AttentionMaskInterface.register(NAME, _keep_mask)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Context in which Transformers logs only errors and shows no progress bars."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def writing_transformers() -> Iterator[None]:
    """Context that is quiet and turns disk failures, for which the libraries raise other errors, into OSErrors."""
    try:
        with quiet_transformers():
            yield
    except Exception as error:
        found = re.search(r"\(os error ([0-9]+)\)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


@contextmanager
def through_interface(model: PreTrainedModel) -> Iterator[None]:
    """Context in which the model's attention goes through linnet's function."""
    before = model.config._attn_implementation
    with quiet_transformers():  # the caller refuses a model that cannot change its attention
        try:
            if before != NAME:
                model.set_attn_implementation(NAME)
            yield
        finally:
            if before != NAME:
                model.set_attn_implementation(before)


def record_interface_calls(model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> list[Call]:
    """Every call of the attention of a model on these inputs, or on a small example, in order."""
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"model is a {type(model).__name__}: it must be a model of Transformers")
    training = model.training
    model.eval()
    calls: list[Call] = []
    token = _CALLS.set(calls)
    try:
        with torch.no_grad(), through_interface(model):
            model(**(interface_example(model) if inputs is None else inputs))
    finally:
        _CALLS.reset(token)
        model.train(training)
    return calls


def interface_example(model: PreTrainedModel) -> dict[str, Tensor]:
    """A small input of the kind that the model reads."""
    config, name = model.config, model.main_input_name
    device = model.device
    if name == "pixel_values":
        size = config.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return {name: torch.zeros(1, config.num_channels, height, width, device=device, dtype=model.dtype)}
    if name != "input_ids":
        raise UnsupportedError(f"{type(model).__name__} reads {name}: linnet patches models of text and of images")
    return {name: torch.arange(8, device=device)[None] % config.vocab_size}
