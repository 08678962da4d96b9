"""Embeddings of texts by an encoder: the mean of its hidden states over real tokens, of length 1."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel


@torch.no_grad()
def embed_texts(
    model: PreTrainedModel,
    texts: Sequence[Sequence[int]],
    batch_tokens: int = 4096,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """(count, M) of texts as token ids, with their special tokens; texts of similar length share a batch."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found: dict[int, Tensor] = {}
    while len(found) < len(texts):
        left = order[len(found) :]
        longest = len(texts[left[0]])
        part: list[int] = []
        for i in left:
            longest = max(longest, len(texts[i]))
            if part and longest * (len(part) + 1) > batch_tokens:
                break
            part.append(i)
        longest = max(len(texts[i]) for i in part)
        ids = torch.zeros(len(part), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, i in enumerate(part):
            ids[row, : len(texts[i])], mask[row, : len(texts[i])] = torch.tensor(texts[i]), 1
        h = model(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (h * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        found |= zip(part, mean / mean.norm(dim=1, keepdim=True), strict=True)
        if progress is not None:
            progress(len(found), len(texts))
    return torch.stack([found[i] for i in range(len(texts))])
