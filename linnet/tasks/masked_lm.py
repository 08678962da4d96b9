"""Predict masked tokens: a share of each block, of which 80 % become the mask, 10 % a random token and 10 % stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from linnet.data.masking import mask_tokens
from linnet.data.packing import IGNORE
from linnet.registry import TASK
from linnet.tasks.base import Batch, Indices, summed_task_loss, task_perplexity, task_tensors
from linnet.tasks.text import TextData, TextTask

if TYPE_CHECKING:
    from torch import Tensor, nn


class MaskedData(TextData):
    """The text, and the share of its tokens that are to be predicted."""

    mask_rate: Annotated[float, Field(gt=0, le=1)] = 0.15


@TASK.add("masked_lm")
class MaskedLM(TextTask):
    """A bidirectional model predicts masked tokens. Masks are redrawn in each epoch; for evaluation they are fixed."""

    Data = MaskedData
    data: MaskedData
    output = "masked_lm"
    needs_mask = True

    def batch(self, split: str, samples: Indices, epochs: Indices) -> Batch:
        """`ids` (B,N), `key_mask` if a block is padded, and `select` and `targets` (K,) of the K masked tokens."""
        blocks, real = self.blocks[split].tokens(samples)
        mask = self.tokenizer.mask
        assert mask is not None  # build_tokenizer was asked for one
        ids, targets = np.empty_like(blocks), np.empty_like(blocks)
        for row, (sample, epoch) in enumerate(zip(samples, epochs, strict=True)):
            key = (self.config.seed, int(epoch), int(sample))
            tokenizer = self.tokenizer
            ids[row], targets[row] = mask_tokens(
                blocks[row], key, mask, tokenizer.vocab_size, tokenizer.special_ids, self.data.mask_rate
            )
        select = np.flatnonzero(targets != IGNORE)  # (K,)
        arrays = {"ids": ids, "select": select, "targets": targets.ravel()[select]}
        return task_tensors(arrays if real.all() else {**arrays, "key_mask": real})

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Cross entropy in nats, summed over the masked tokens."""
        logits = model(batch["ids"], key_mask=batch.get("key_mask"), select=batch["select"])  # (K, V)
        return summed_task_loss(logits, batch["targets"]), len(batch["targets"])

    def metrics(self, split: str, sums: Mapping[str, float]) -> dict[str, Any]:
        """Loss and perplexity per masked token; perplexity per word has no meaning here."""
        count = int(sums["terms"])
        mean = sums["loss"] / max(count, 1)
        found = {"split": split, "loss": mean, "perplexity": task_perplexity(mean)}
        return {**found, "tokens": count, "context": self.data.context}
