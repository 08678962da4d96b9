"""Views of a Transformers model's attention for linnet's instruments, optionally with a linear form beside it."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from linnet.attention.base import create_attention
from linnet.errors import InputError, UnsupportedError
from linnet.hf.interface import Call, record_interface_calls
from linnet.hf.load import load
from linnet.hf.pieces import load_tokenizer_of_pieces
from linnet.instruments.base import View
from linnet.storage import read_text_file


def views_of_encoder(model: PreTrainedModel, inputs: Mapping[str, Tensor], beside: str | None = None) -> list[View]:
    """A view per layer on unpadded inputs; with `beside`, then one of that mechanism on the same q, k and v per layer.

    A layer that `patch` has changed shows its mechanism, any other one its softmax. A layer with a window has no view
    of the mechanism beside it.
    """
    calls = record_interface_calls(model, inputs)
    if not calls:
        kind = type(model).__name__
        raise UnsupportedError(f"{kind} does not use the attention interface of Transformers: it cannot be measured")
    views = [_view(f"layer {i}", call) for i, call in enumerate(calls)]
    for i, call in enumerate(calls):
        if beside is not None and call.window is None:
            H, D = call.q.shape[1], call.q.shape[3]
            core = create_attention(beside, heads=H, head_dim=D, causal=call.causal).eval()
            views.append(_view(f"layer {i}", call._replace(core=core)))
    return views


def _view(place: str, call: Call) -> View:
    """The weights of one layer."""
    q, k, v = call.q, call.k, call.v
    shape = (q.shape[0], q.shape[1], q.shape[2])
    if call.window is not None:
        window = call.window
        return View(f"{place} window", shape, call.causal, lambda a, b: _window_rows(q, k, window, call.causal, a, b))
    core = call.core
    if core is None:
        core = create_attention("softmax", heads=q.shape[1], head_dim=q.shape[3], causal=call.causal).eval()
    rows = core.rows
    return View(f"{place} {core.name}", shape, call.causal, lambda a, b: rows(q, k, a, b), core, q, k, v)


def _window_rows(q: Tensor, k: Tensor, window: int, causal: bool, start: int, stop: int) -> Tensor:
    """Rows of a softmax over the keys at most `window` tokens away."""
    gap = torch.arange(start, stop, device=q.device)[:, None] - torch.arange(k.shape[2], device=q.device)
    seen = (gap.abs() <= window) & (gap >= 0) if causal else gap.abs() <= window
    scores = q[:, :, start:stop] @ k.mT * q.shape[3] ** -0.5
    return scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)


def views_of_folder(
    folder: Path, text: Path, tokens: int | None, beside: str | None
) -> tuple[list[View], list[str], str]:
    """The views of the model in a folder of Transformers on a text, its tokens as words, and their separator."""
    content = read_text_file(text)
    model, tokenizer = load(folder), load_tokenizer_of_pieces(folder)
    special = tokenizer.encode("").ids
    inner = tokenizer.encode(content, add_special_tokens=False).ids
    limit = getattr(model.config, "max_position_embeddings", None)
    if tokens is None and isinstance(limit, int) and len(inner) + len(special) > limit:
        raise InputError(
            f"{text} has {len(inner)} tokens, the model {limit} positions: set --tokens to at most {limit}"
        )
    if tokens is not None and isinstance(limit, int) and tokens > limit:
        raise InputError(f"--tokens is {tokens}: the model has {limit} positions")
    room = None if tokens is None else max(tokens - len(special), 0)
    ids = [*special[:1], *inner[:room], *special[1:]]
    if len(ids) < 2:
        raise InputError(f"{text} has {len(ids)} tokens: it needs at least two")
    words = [tokenizer.id_to_token(token) or "" for token in ids]
    return views_of_encoder(model, {"input_ids": torch.tensor([ids])}, beside), words, " "
