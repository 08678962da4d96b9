"""Put linnet's attention inside a pretrained encoder or decoder of Transformers, and take it out again."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from linnet.attention.base import Core, create_attention
from linnet.config import short_config_value
from linnet.errors import InputError, UnsupportedError
from linnet.hf.cache import DecoderCache, own_cache
from linnet.hf.interface import NAME, Call, interface_example, record_interface_calls
from linnet.hf.modeling import LinnetPreTrainedModel

_OF_DECODERS = {"_is_stateful", "_linnet_hook"}


def patch(model: PreTrainedModel, name: str, *, layers: Sequence[int] | None = None, **options: Any) -> PreTrainedModel:
    """Replace the softmax of an encoder or a decoder by the mechanism `name`, in place; returns the model.

    `layers` are layer numbers from 0 on; by default all except those that attend inside a window, which stay as
    they are. `options` are those of the mechanism. The weights of the model stay; parameters of the mechanism are
    added to its attention modules. The configuration records the choice, which `save_pretrained` saves and
    `linnet.hf.load` restores. A decoder is patched in all layers, by a mechanism with a recurrent state: `generate`
    then carries a DecoderCache, of constant size, instead of keys and values.
    """
    if isinstance(model, LinnetPreTrainedModel):
        raise InputError(f"{type(model).__name__} is a linnet model: choose its mechanisms in LinnetConfig.layers")
    if getattr(getattr(model, "config", None), NAME, None):
        raise InputError("the model is patched already: linnet.hf.unpatch(model) comes first")
    calls = attention_calls_to_patch(model)
    chosen = _chosen(calls, layers)
    cores = [
        create_attention(name, heads=call.q.shape[1], head_dim=call.q.shape[3], causal=call.causal, **options)
        for call in chosen
    ]
    decoder = any(call.causal for call in calls)
    if decoder:
        _check_decoder(calls, chosen, cores[0])
    for call, core in zip(chosen, cores, strict=True):
        call.module.add_module(NAME, core.to(call.q.device, call.q.dtype).train(model.training))
    numbers = [i for i, call in enumerate(calls) if any(call is one for one in chosen)]
    setattr(model.config, NAME, {"attention": name, "options": options, "layers": numbers})
    model.set_attn_implementation(NAME)
    try:
        used = {id(call.module) for call in record_interface_calls(model) if call.core is not None}
        if used != {id(call.module) for call in chosen}:
            raise UnsupportedError(f"{type(model).__name__} ignores the attention interface: nothing was changed")
        if decoder:
            _carry_state(model)
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
    for name in _OF_DECODERS & vars(model).keys():
        found = vars(model).pop(name)
        if isinstance(found, RemovableHandle):
            found.remove()
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    return model


def attention_calls_to_patch(model: PreTrainedModel) -> list[Call]:
    """One call per attention module; a model that cannot be patched is refused with the reason."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise UnsupportedError(f"{type(model).__name__} has a decoder: linnet patches encoders and decoders alone")
    calls = record_interface_calls(model)
    kind = type(model).__name__
    if not calls:
        raise UnsupportedError(f"{kind} does not use the attention interface of Transformers: it cannot be patched")
    if any(call.q.shape[2] != call.k.shape[2] for call in calls):
        raise UnsupportedError(f"{kind} attends to another sequence: linnet patches self-attention only")
    unique = {id(call.module): call for call in reversed(calls)}  # some models use one module in every layer
    return list(reversed(unique.values()))


def _check_decoder(calls: Sequence[Call], chosen: Sequence[Call], core: Core) -> None:
    """Raise if a decoder would keep keys and values in any layer."""
    windows = [call.window for call in calls if call.window is not None]
    if windows:
        raise UnsupportedError(
            f"a layer of this decoder attends inside a window of {windows[0] + 1} tokens, as its cache does"
        )
    if len(chosen) < len(calls):
        raise UnsupportedError("a decoder carries one kind of state: layers must be None, which patches all of them")
    core.check_recurrent()


def _carry_state(model: PreTrainedModel) -> None:
    """Give every call that asks for a cache a DecoderCache; raises if that changes the output."""
    model.__dict__["_is_stateful"] = True  # assisted decoding is refused: a state cannot be rolled back
    hook = model.base_model.register_forward_pre_hook(_give_cache, with_kwargs=True)
    model.__dict__["_linnet_hook"] = hook
    ids = interface_example(model)["input_ids"]
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False)[0]
        cache: DecoderCache | None = None
        parts: list[Tensor] = []
        for part in (ids[:, :5], ids[:, 5:7], ids[:, 7:]):
            found = model(input_ids=part, past_key_values=cache, use_cache=True)
            cache, parts = found.past_key_values, [*parts, found[0]]
    if not torch.allclose(torch.cat(parts, dim=1).float(), whole.float(), rtol=1e-2, atol=1e-2 * float(whole.std())):
        raise UnsupportedError(f"{type(model).__name__} uses its cache in another way: nothing was changed")


def _give_cache(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """A state instead of an empty cache of Transformers."""
    wanted = kwargs.get("use_cache")
    past = kwargs.get("past_key_values")
    if past is None and not (module.config.use_cache if wanted is None else wanted):
        return None
    return args, {**kwargs, "past_key_values": own_cache(past, DecoderCache)}


def _chosen(calls: Sequence[Call], layers: Sequence[int] | None) -> list[Call]:
    """The calls of the layers to patch."""
    if layers is None:
        chosen = [call for call in calls if call.window is None or call.causal]
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
