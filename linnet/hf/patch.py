"""Put linnet's attention inside a pretrained encoder of Transformers, and take it out again."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from linnet.attention.base import create_attention
from linnet.config import short_config_value
from linnet.errors import InputError, UnsupportedError
from linnet.hf.interface import NAME, Call, record_interface_calls
from linnet.hf.modeling import LinnetPreTrainedModel


def patch(model: PreTrainedModel, name: str, *, layers: Sequence[int] | None = None, **options: Any) -> PreTrainedModel:
    """Replace the softmax of an encoder by the mechanism `name`, in place; returns the model.

    `layers` are layer numbers from 0 on; by default all except those that attend inside a window, which stay as
    they are. `options` are those of the mechanism. The weights of the model stay; parameters of the mechanism are
    added to its attention modules. The configuration records the choice, which `save_pretrained` saves and
    `linnet.hf.load` restores.
    """
    if isinstance(model, LinnetPreTrainedModel):
        raise InputError(f"{type(model).__name__} is a linnet model: choose its mechanisms in LinnetConfig.layers")
    if getattr(getattr(model, "config", None), NAME, None):
        raise InputError("the model is patched already: linnet.hf.unpatch(model) comes first")
    calls = attention_calls_to_patch(model)
    chosen = _chosen(calls, layers)
    cores = [
        create_attention(name, heads=call.q.shape[1], head_dim=call.q.shape[3], causal=False, **options)
        for call in chosen
    ]
    for call, core in zip(chosen, cores, strict=True):
        call.module.add_module(NAME, core.to(call.q.device, call.q.dtype).train(model.training))
    numbers = [i for i, call in enumerate(calls) if any(call is one for one in chosen)]
    setattr(model.config, NAME, {"attention": name, "options": options, "layers": numbers})
    model.set_attn_implementation(NAME)
    try:
        used = {id(call.module) for call in record_interface_calls(model) if call.core is not None}
        if used != {id(call.module) for call in chosen}:
            raise UnsupportedError(f"{type(model).__name__} ignores the attention interface: nothing was changed")
    except BaseException:
        unpatch(model)
        raise
    return model


def unpatch(model: PreTrainedModel) -> PreTrainedModel:
    """Restore the softmax of a patched model, in place; the weights that the mechanism added are lost."""
    if not getattr(getattr(model, "config", None), NAME, None):
        raise InputError("the model is not patched")
    for module in list(model.modules()):
        if hasattr(module, NAME):
            delattr(module, NAME)
    delattr(model.config, NAME)
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    return model


def attention_calls_to_patch(model: PreTrainedModel) -> list[Call]:
    """One call per attention module of an encoder; a model that cannot be patched is refused with the reason."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise UnsupportedError(f"{type(model).__name__} has a decoder: linnet patches encoders only")
    calls = record_interface_calls(model)
    kind = type(model).__name__
    if not calls:
        raise UnsupportedError(f"{kind} does not use the attention interface of Transformers: it cannot be patched")
    if any(call.causal for call in calls):
        raise UnsupportedError(
            f"{kind} is a decoder, whose cache of keys and values would stay: LinnetForCausalLM has a constant state"
        )
    if any(call.q.shape[2] != call.k.shape[2] for call in calls):
        raise UnsupportedError(f"{kind} attends to another sequence: linnet patches self-attention only")
    unique = {id(call.module): call for call in reversed(calls)}  # some models use one module in every layer
    return list(reversed(unique.values()))


def _chosen(calls: Sequence[Call], layers: Sequence[int] | None) -> list[Call]:
    """The calls of the layers to patch."""
    if layers is None:
        chosen = [call for call in calls if call.window is None]
        if not chosen:
            raise UnsupportedError("every layer of this model attends inside a window, which is linear already")
        return chosen
    numbers = list(layers)
    if not numbers:
        raise InputError("layers is empty: None patches all of them")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(calls):
            raise InputError(
                f"layers contains {short_config_value(number)}: they are numbered from 0 to {len(calls) - 1}"
            )
        window = calls[number].window
        if window is not None:
            raise UnsupportedError(f"layer {number} attends inside a window of {window} tokens on each side: leave it")
    return [calls[number] for number in dict.fromkeys(numbers)]
