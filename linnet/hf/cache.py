"""The cache of a linnet model in Transformers: one state of constant size instead of keys and values."""

from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache

from linnet.attention.base import Core
from linnet.errors import InputError, UnsupportedError
from linnet.models.backbone import ModelState
from linnet.ops.precision import State

_Kind = TypeVar("_Kind", bound="LinnetCache")
_WHY = "a recurrent state cannot be rolled back"


def _mapped(state: Any, change: Any) -> Any:
    """The state with `change` applied to every tensor; states are nested tuples."""
    if isinstance(state, Tensor):
        return change(state)
    parts = [_mapped(part, change) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


class LinnetCache(Cache):
    """The state after the tokens so far; `seen` counts their columns, padding included."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.state: ModelState | None = None
        self.seen = 0

    def store(self, state: ModelState, columns: int) -> None:
        """Keep the state after `columns` more columns of tokens."""
        self.state, self.seen = state, self.seen + columns

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns read so far."""
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: there is no limit."""
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """The columns of a mask: those read and the new ones."""
        return self.seen + query_length, 0

    def reset(self) -> None:
        """Forget everything."""
        self.state, self.seen = None, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Choose the rows with which beam search continues."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order."""
        self._change(lambda part: part.index_select(0, indices.to(part.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        self._change(lambda part: part.repeat_interleave(repeats, dim=0))

    def _change(self, change: Any) -> None:
        if self.state is not None:
            self.state = _mapped(self.state, change)

    def crop(self, tokens_to_remove: int) -> NoReturn:
        """Refused."""
        raise UnsupportedError(f"a LinnetCache cannot be cropped: {_WHY}; read the shorter text with a new cache")

    def activate_past_recording(self) -> NoReturn:
        """Refused: only assisted decoding needs it."""
        raise UnsupportedError(f"a linnet model cannot assist another model's decoding: {_WHY}")

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: there are no keys and values."""
        raise UnsupportedError("a LinnetCache holds a state, not keys and values")

    @property
    def batch_size(self) -> int:
        """Rows of the state, -1 before the first token."""
        return -1 if self.state is None else len(self.state.length)

    @property
    def is_initialized(self) -> bool:
        """Whether a token was read."""
        return self.state is not None

    @property
    def is_compileable(self) -> bool:
        """False: Transformers would pass a four-dimensional mask."""
        return False

    @property
    def is_croppable(self) -> bool:
        """False."""
        return False

    def state_bytes(self) -> int:
        """Memory of the state: the same after any number of tokens, except for mechanisms whose state grows."""
        return 0 if self.state is None else _bytes(self.state)


class DecoderCache(LinnetCache):
    """The state of a patched decoder: one per layer, instead of the keys and values that its layers pass to `update`.

    A layer updates the cache, then calls its attention with what `update` returns: these keys find the cache again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, State] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """The new keys and values as they are."""
        if layer_idx == 0:
            self.seen += key_states.shape[2]
        _UPDATED.set(_Updated(self, layer_idx, key_states))
        return key_states, value_states

    def attend(self, layer: int, core: Core, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """o (B,H,N,E) of new tokens after all those before, whose state is replaced by that after the new ones."""
        state = self.states.get(layer)
        new = None if mask is None else mask[:, -q.shape[2] :].to(torch.bool)
        if mask is not None and mask.shape[1] != self.seen:
            raise InputError(f"attention_mask has {mask.shape[1]} columns: the cache has read {self.seen}")
        if state is not None and q.shape[2] == 1 and (new is None or bool(new.all())):
            o, self.states[layer] = core.step(q, k, v, state)
        else:
            o, self.states[layer] = core.prefill(q, k, v, new, state)
        return o

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.states.clear()

    def _change(self, change: Any) -> None:
        self.states = {layer: _mapped(state, change) for layer, state in self.states.items()}

    @property
    def batch_size(self) -> int:
        """Rows of the state, -1 before the first token."""
        return next((len(state[0]) for state in self.states.values()), -1)

    @property
    def is_initialized(self) -> bool:
        """Whether a token was read."""
        return bool(self.states)

    def state_bytes(self) -> int:
        """Memory of all states."""
        return _bytes(tuple(self.states.values()))


class _Updated(NamedTuple):
    cache: DecoderCache
    layer: int
    keys: Tensor


_UPDATED: ContextVar[_Updated | None] = ContextVar("linnet_updated", default=None)


@torch.compiler.disable
def cache_of_keys(keys: Tensor) -> tuple[DecoderCache, int] | None:
    """The cache, and the layer in it, that has just been updated with these keys; None without a cache.

    Compilers cannot trace it: they would read the cache of the call that they have seen.
    """
    updated = _UPDATED.get()
    if updated is None or updated.keys is not keys:
        return None
    _UPDATED.set(None)
    return updated.cache, updated.layer


def own_cache(past: Cache | None, kind: type[_Kind]) -> _Kind:
    """A cache of this kind: an empty one of Transformers is replaced, any other is refused."""
    if isinstance(past, kind):
        return past
    if past is None or (type(past) is DynamicCache and past.get_seq_length() == 0 and not past.offloading):
        return kind()
    raise UnsupportedError(
        f"past_key_values is a {type(past).__name__}: the model keeps a state, a {kind.__name__}; leave out "
        "past_key_values and cache_implementation"
    )


def _bytes(state: Any) -> int:
    sizes: list[int] = []
    _mapped(state, lambda part: sizes.append(part.numel() * part.element_size()))
    return sum(sizes)
