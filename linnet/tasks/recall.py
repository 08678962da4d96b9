"""Multi-query associative recall, measured by accuracy: the share of keys answered with their values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from linnet.config import Count, DataSettings
from linnet.data.corpora import SPLITS
from linnet.data.packing import IGNORE
from linnet.data.recall import draw_recall_sample
from linnet.registry import TASK
from linnet.tasks.base import Batch, Indices, Task, summed_task_loss, task_tensors

if TYPE_CHECKING:
    from torch import Tensor, nn

EVALUATED = 1000  # samples in each of the validation and test splits
HASHED = 16  # samples of each split that identify the data of a run


class RecallData(DataSettings):
    """Generated samples: their length, the number of ids, and how many pairs they hold."""

    context: Annotated[int, Field(ge=3, le=10**7)] = 128
    vocab_size: Annotated[int, Field(ge=3, le=10**7)] = 128
    pairs: Annotated[tuple[Count, ...], Field(min_length=1, strict=False, examples=[(4, 8, 16, 32)])] = (4, 8, 16, 32)

    @field_validator("pairs")
    @classmethod
    def _fit(cls, pairs: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        most, context, size = max(pairs), info.data.get("context"), info.data.get("vocab_size")
        if list(pairs) != sorted(set(pairs)):
            raise ValueError("the numbers must increase")
        if context is not None and 3 * most > context:
            raise ValueError(f"{most} pairs with one query each need data.context = {3 * most}, but it is {context}")
        if size is not None and 2 * most + 1 > size:
            raise ValueError(f"{most} keys and {most} values need data.vocab_size = {2 * most + 1}, but it is {size}")
        return pairs


@TASK.add("recall")
class Recall(Task):
    """A causal model reads pairs, then gives the value of each repeated key; no sample is used twice."""

    Data = RecallData
    data: RecallData
    output = "causal_lm"

    @classmethod
    def planned_fields(cls, data: Any, pretrain: bool = False) -> dict[str, Any]:
        """The number of ids."""
        return {"vocab_size": data.vocab_size}

    def model_fields(self) -> dict[str, Any]:
        """The number of ids."""
        return self.planned_fields(self.data, self.config.pretrain)

    def at_once(self) -> tuple[int, int]:
        """A batch of samples, each as long as the context."""
        return self.config.train.batch * self.data.context, 0

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 of the first samples of each split, which changes if the generator does."""
        first = {split: self.batch(split, np.arange(HASHED), np.zeros(HASHED, np.int64)) for split in SPLITS}
        return {
            split: hashlib.sha256(b"".join(batch[name].numpy().tobytes() for name in sorted(batch))).hexdigest()
            for split, batch in first.items()
        }

    def save(self, folder: Path) -> None:
        """Write nothing: there is no tokenizer."""

    def count(self, split: str) -> int:
        """Number of samples; the training split has as many as the run uses."""
        train = self.config.train
        return train.steps * train.batch * train.accumulate if split == "train" else EVALUATED

    def train_samples(self, number: int) -> tuple[Indices, Indices]:
        """Samples in the order of their numbers, so they do not depend on the length of the run."""
        size = self.config.train.batch
        return number * size + np.arange(size), np.zeros(size, np.int64)

    def batch(self, split: str, samples: Indices, epochs: Indices) -> Batch:
        """`ids` (B,N), and for its K queries `select`, `targets` and the number of `pairs` in their sample, (K,)."""
        seed, sizes = self.config.seed, (self.data.context, self.data.vocab_size, self.data.pairs)
        made = [draw_recall_sample((seed, split, int(sample)), *sizes) for sample in samples]
        ids, targets = (np.stack(rows) for rows in zip(*made, strict=True))  # (B, N) each
        asked = targets != IGNORE
        pairs = np.broadcast_to(asked.sum(axis=1, keepdims=True), asked.shape)
        arrays = {"ids": ids, "select": np.flatnonzero(asked), "targets": targets[asked], "pairs": pairs[asked]}
        return task_tensors(arrays)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Cross entropy in nats, summed over the answers."""
        return self._score(model, batch)[0], len(batch["targets"])

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """The loss, and the number of queries and of right answers, by number of pairs."""
        loss, right = self._score(model, batch)
        sums = {"loss": float(loss), "terms": len(right)}
        for P in self.data.pairs:
            here = batch["pairs"] == P
            sums |= {f"asked {P}": int(here.sum()), f"right {P}": int(right[here].sum())}
        return sums

    def _score(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The summed loss, and whether each answer is right (K,)."""
        logits = model(batch["ids"], select=batch["select"])  # (K, V)
        return summed_task_loss(logits, batch["targets"]), logits.argmax(dim=-1) == batch["targets"]

    def metrics(self, split: str, sums: Mapping[str, float]) -> dict[str, Any]:
        """Loss per answer, and accuracy over all answers and by number of pairs."""
        count = int(sums["terms"])
        found = {P: (sums[f"right {P}"], sums[f"asked {P}"]) for P in self.data.pairs}
        accuracy = sum(right for right, _ in found.values()) / count
        by_pairs = {f"accuracy_{P}_pairs": right / asked for P, (right, asked) in found.items() if asked}
        about = {"split": split, "loss": sums["loss"] / count, "accuracy": accuracy, **by_pairs}
        return {**about, "tokens": count, "context": self.data.context}
