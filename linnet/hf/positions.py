"""Longer texts for an encoder with a table of positions: the table is stretched by interpolation."""

import torch
from torch import nn
from transformers import PreTrainedModel

from linnet.config import short_config_value
from linnet.errors import InputError, UnsupportedError

_TABLE = "position_embeddings"
_COUNTED = ("position_ids", "token_type_ids")  # buffers with an entry for each position, beside the table


@torch.no_grad()
def stretch_positions(model: PreTrainedModel, tokens: int) -> PreTrainedModel:
    """Give an encoder a position for each of `tokens` tokens, in place; returns the model.

    The new table is a linear interpolation of the learned one: position p of 512 lies at 16 p of 8,192. Texts that the
    model could read before get other positions than before, so it should be trained a little afterwards.
    `save_pretrained` keeps the longer table.
    """
    found = [
        (m, m.get_submodule(_TABLE)) for m in model.modules() if isinstance(getattr(m, _TABLE, None), nn.Embedding)
    ]
    if len(found) != 1:
        raise UnsupportedError(f"{type(model).__name__} has no table of positions: there is nothing to stretch")
    ((module, table),) = found
    assert isinstance(table, nn.Embedding)
    first = 0 if table.padding_idx is None else table.padding_idx + 1  # RoBERTa counts from after the padding
    had = table.num_embeddings - first
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not had < tokens <= 2**20:
        raise InputError(
            f"tokens is {short_config_value(tokens)}: the model has {had}; allowed are {had + 1} to {2**20}"
        )
    rows = table.weight[first:].float().T[None]  # (1, M, had)
    longer = nn.functional.interpolate(rows, size=tokens, mode="linear", align_corners=True)[0].T.to(table.weight)
    table.weight = nn.Parameter(torch.cat([table.weight[:first], longer]), requires_grad=table.weight.requires_grad)
    table.num_embeddings = model.config.max_position_embeddings = first + tokens
    device = table.weight.device
    for name in _COUNTED:
        if isinstance(getattr(module, name, None), torch.Tensor):
            entries = torch.arange(first + tokens, device=device)[None]
            setattr(module, name, entries if name == _COUNTED[0] else torch.zeros_like(entries))
    return model
