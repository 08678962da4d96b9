"""Predict the next token: perplexity by token and, over a whole split, by word."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from linnet.data.packing import IGNORE
from linnet.registry import TASK
from linnet.tasks.base import Batch, Indices, TextTask, perplexity


@TASK.add("causal_lm")
class CausalLM(TextTask):
    """A language model reads a block and predicts each of its tokens from those before it in the block."""

    output = "causal_lm"

    def batch(self, split: str, samples: Indices, epochs: Indices) -> Batch:
        """`ids` and `targets` (B,N)."""
        ids, targets = self.blocks[split].causal(samples)
        return {"ids": torch.from_numpy(ids), "targets": torch.from_numpy(targets)}

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Cross entropy in nats, summed over the real tokens."""
        targets = batch["targets"].flatten()
        logits = model(batch["ids"]).flatten(0, 1)  # (B*N, V)
        # Padding stands only at the end of a block, where a causal model's real tokens do not see it.
        total = cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum")
        return total, int((targets != IGNORE).sum())

    def metrics(self, split: str, sums: Mapping[str, float]) -> dict[str, Any]:
        """Loss and perplexity by token; by word, and bits by byte, where the split was read as a whole."""
        loss, count, stream = sums["loss"], int(sums["terms"]), self.streams[split]
        found: dict[str, Any] = {"split": split, "loss": loss / count, "perplexity": perplexity(loss / count)}
        whole = count == len(stream.tokens)
        if whole:
            found["word_perplexity"] = perplexity(loss / stream.words)
            found["bits_per_byte"] = loss / math.log(2) / stream.bytes
        sizes = {"tokens": count, "words": stream.words, "bytes": stream.bytes} if whole else {"tokens": count}
        return {**found, **sizes, "context": self.config.data.context}
