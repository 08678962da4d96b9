"""Predict the next token; measured by perplexity per token and, over a whole split, per word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from linnet.data.packing import IGNORE
from linnet.registry import TASK
from linnet.tasks.base import Batch, Indices, summed_task_loss, task_perplexity, task_tensors
from linnet.tasks.text import TextTask

if TYPE_CHECKING:
    from torch import Tensor, nn


@TASK.add("causal_lm")
class CausalLM(TextTask):
    """A language model predicts each token of a block from the tokens before it in the block."""

    output = "causal_lm"

    def at_once(self) -> tuple[int, int]:
        """A batch of blocks, each of whose tokens is predicted."""
        tokens, _ = super().at_once()
        return tokens, tokens

    def batch(self, split: str, samples: Indices, epochs: Indices) -> Batch:
        """`ids` and `targets` (B,N)."""
        ids, targets = self.blocks[split].causal(samples)
        return task_tensors({"ids": ids, "targets": targets})

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Cross entropy in nats, summed over the real tokens."""
        targets = batch["targets"].flatten()
        logits = model(batch["ids"]).flatten(0, 1)  # (B*N, V)
        # Padding is only at the end of a block, where the real tokens of a causal model do not see it.
        return summed_task_loss(logits, targets), int((targets != IGNORE).sum())

    def metrics(self, split: str, sums: Mapping[str, float]) -> dict[str, Any]:
        """Loss and perplexity per token; if the whole split was read, also perplexity per word and bits per byte."""
        loss, count, stream = sums["loss"], int(sums["terms"]), self.streams[split]
        found: dict[str, Any] = {"split": split, "loss": loss / count, "perplexity": task_perplexity(loss / count)}
        whole = count == len(stream.tokens)
        if whole:
            found["word_perplexity"] = task_perplexity(loss / stream.words)
            found["bits_per_byte"] = loss / math.log(2) / stream.bytes
        sizes = {"tokens": count, "words": stream.words, "bytes": stream.bytes} if whole else {"tokens": count}
        return {**found, **sizes, "context": self.data.context}
