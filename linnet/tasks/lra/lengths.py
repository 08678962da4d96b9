"""A batch of padded sequences in groups of like lengths: each is cut to its own longest, so that less is padding."""

import torch
from torch import Tensor

from linnet.tasks.base import Batch


def by_length(batch: Batch, groups: int) -> list[Batch]:
    """The samples of a batch from the shortest to the longest, in so many groups; sums over them are the batch's.

    A sample is a row of `ids` and `key_mask` (B,...,N). Its label is one of `labels` (B,), or where tokens are guessed,
    `labels` and `select` (K,) are those of the flat ids.
    """
    if groups == 1 or "key_mask" not in batch:
        return [batch]
    real = batch["key_mask"]
    B, N = real.shape[0], real.shape[-1]
    ends = (real * torch.arange(1, N + 1, device=real.device)).reshape(B, -1).amax(dim=1)  # (B,)
    order = ends.argsort(stable=True)
    return [_cut(batch, rows, int(ends[rows].max())) for rows in order.tensor_split(groups) if len(rows)]


def _cut(batch: Batch, rows: Tensor, N: int) -> Batch:
    """These rows, and the first N of their tokens."""
    ids, real = (batch[name][rows][..., :N].contiguous() for name in ("ids", "key_mask"))
    part = {"ids": ids} if bool(real.all()) else {"ids": ids, "key_mask": real}
    if "select" not in batch:
        return {**part, "labels": batch["labels"][rows]}
    place = torch.full(batch["ids"].shape, -1, device=ids.device)  # of each token's label
    place.view(-1)[batch["select"]] = torch.arange(len(batch["labels"]), device=ids.device)
    place = place[rows, :N].flatten()
    select = (place >= 0).nonzero().squeeze(1)
    return {**part, "labels": batch["labels"][place[select]], "select": select}
