"""The cache of a linnet model in Transformers: one state of constant size instead of keys and values."""

from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from linnet.errors import UnsupportedError
from linnet.models.backbone import ModelState

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
        sizes: list[int] = []
        if self.state is not None:
            _mapped(
                self.state, lambda part: sizes.append(part.numel() * torch.empty(0, dtype=part.dtype).element_size())
            )
        return sum(sizes)
