"""The shared part of the Long Range Arena tasks: classify a sequence, with cross entropy, measured by accuracy.

The same sequences can be denoised instead: a share of their tokens is masked and predicted. A run with
`pretrain = true` starts with that.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from linnet.config import Count, DataSettings, Place, RunConfig
from linnet.data.lra.sequences import Sequences, sequence_arrays_sha256
from linnet.data.masking import IGNORE, mask_tokens
from linnet.data.packing import packed_batch_indices
from linnet.errors import InputError
from linnet.tasks.base import (
    EVALUATION,
    Batch,
    Indices,
    Sums,
    Task,
    Work,
    summed_task_loss,
    task_perplexity,
    task_tensors,
)
from linnet.tasks.parts import split_batch_by_length

if TYPE_CHECKING:
    from torch import Tensor, nn

    from linnet.models.config import ModelConfig

PAD = 0
ROWS = 4  # rows of a batch that are computed at once
MASKED = 0.15  # share of the tokens that are masked when a sequence is denoised


class LraData(DataSettings):
    """Where the data are or how to generate them, and which rules to apply."""

    context: Annotated[int, Field(ge=2, le=10**7)] = 4096
    path: Place = None
    cache: Place = None
    rules: Literal["lra", "skyformer"] = "lra"
    count: Count | None = None
    variant: Annotated[int, Field(ge=0, le=10**9)] = 0
    objective: Literal["classify", "denoise"] = "classify"


class LraTask(Task):
    """Classify token sequences. `tokens` counts the tokens in the data; `vocab_size` is the paper's."""

    Data = LraData
    data: LraData
    output = "classifier"
    scored = "best"
    classes: ClassVar[int]
    tokens: ClassVar[int]
    vocab_size: ClassVar[int]
    padded: ClassVar[bool] = True  # 0 is padding, not a token
    between: ClassVar[str] = " "  # separator of two symbols when they are shown

    def __init__(
        self, config: RunConfig, cache: Path | None = None, folder: Path | None = None, work: Work | None = None
    ) -> None:
        super().__init__(config, cache, folder, work)
        if self.data.count is not None and not self.generated(self.data):
            raise InputError(f"data.count is {self.data.count}: it applies only to generated data, and these are read")
        self.splits = self.read()
        for split, sequences in self.splits.items():
            sequences.check(f"the {split} split", self.classes)

    @abstractmethod
    def read(self) -> dict[str, Sequences]:
        """The sequences of each split, none longer than `data.context`."""

    @staticmethod
    def denoising(data: LraData) -> LraData | None:
        """The same sequences, with masked tokens to predict."""
        return None if data.objective == "denoise" else data.model_copy(update={"objective": "denoise"})

    @staticmethod
    def rank(metrics: Mapping[str, Any]) -> float:
        """The best checkpoint has the highest accuracy or, when denoising, the lowest loss."""
        return -float(metrics["accuracy"]) if "accuracy" in metrics else float(metrics["loss"])

    @property
    def denoises(self) -> bool:
        """Whether the model predicts masked tokens instead of classes."""
        return self.data.objective == "denoise"

    @classmethod
    def planned_fields(cls, data: Any, pretrain: bool = False) -> dict[str, Any]:
        """The sizes of the benchmark; positions are rounded up to a power of two, and the mask is an extra token."""
        denoises = data.objective == "denoise"
        fields = {
            "vocab_size": max(cls.vocab_size, cls.tokens + (denoises or pretrain)),
            "max_length": 1 << (data.context - 1).bit_length(),
            "classes": cls.classes,
            "output": "masked_lm" if denoises else cls.output,
        }
        return {**fields, "mean_over": "max_length"} if data.rules == "skyformer" else fields

    def model_fields(self) -> dict[str, Any]:
        """None: `planned_fields` has them all."""
        return self.planned_fields(self.data, self.config.pretrain)

    def different_tokens(self) -> int:
        """Number of distinct tokens, including the mask if any are masked."""
        return self.tokens + (self.denoises or self.config.pretrain)

    def check_model(self, model: ModelConfig) -> None:
        """Also raise if the model has the wrong number of classes."""
        super().check_model(model)
        if model.classes != self.classes:
            raise InputError(f"model.classes is {model.classes}: the task {self.config.task} has {self.classes}")

    def words(self, ids: Sequence[int]) -> tuple[list[str], str]:
        """The symbols of tokens; a masked token is "?"."""
        return ["?" if token == self.tokens else self.symbol(token) for token in ids], self.between

    def symbol(self, token: int) -> str:
        """The symbol of a token; by default its number, such as a grey level."""
        return str(token)

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 of each split."""
        return {split: sequence_arrays_sha256(sequences.arrays(split)) for split, sequences in self.splits.items()}

    def save(self, folder: Path) -> None:
        """Write nothing: the tokens of the benchmark are fixed."""

    def count(self, split: str) -> int:
        """Number of sequences."""
        return len(self.splits[split])

    def batch(self, split: str, samples: Indices, epochs: Indices) -> Batch:
        """`ids` (B,N), `labels` (B,), and `key_mask` (B,N) if there is padding."""
        ids, real = self.rows(split, samples)
        if self.denoises:
            return self._gaps(ids, real, samples, epochs)
        return make_lra_batch(ids, real, self.splits[split].labels[samples])

    def sample(self, split: str, count: int) -> Indices:
        """`count` random samples, the same for all seeds: the first ones of a file may all belong to one class."""
        return np.sort(packed_batch_indices(0, EVALUATION, 0, count, self.count(split)))

    def rows(self, split: str, samples: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        """Sequences as (B,N), and which of their tokens are real."""
        ids, real = self.splits[split].rows(samples, self.data.context)
        return ids, ids != PAD if self.data.rules == "skyformer" else real  # its rules treat black pixels as padding

    def _gaps(self, ids: Indices, real: NDArray[np.bool_], samples: Indices, epochs: Indices) -> Batch:
        """`ids` with masked tokens, and `select` and `labels` (K,) of these K tokens."""
        targets = np.full_like(ids, IGNORE)
        for row, (sample, epoch) in enumerate(zip(samples, epochs, strict=True)):
            key, place = (self.config.seed, int(epoch), int(sample)), np.flatnonzero(real[row])
            special = (PAD,) if self.padded else ()
            gaps, found = mask_tokens(ids[row, place], key, self.tokens, self.tokens + 1, special, MASKED)
            ids[row, place], targets[row, place] = gaps, found
        select = np.flatnonzero(targets != IGNORE)
        return {**make_lra_batch(ids, real, targets.ravel()[select]), **task_tensors({"select": select})}

    def parts(self, batch: Batch) -> list[Batch]:
        """On a CPU, a few rows of similar length at a time: a whole batch would be large and mostly padding."""
        return split_batch_by_length(batch, ROWS)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Cross entropy in nats, summed over the sequences, or over the masked tokens."""
        logits, labels = self._logits(model, batch), batch["labels"]
        return summed_task_loss(logits, labels), len(labels)

    def measure(self, model: nn.Module, batch: Batch) -> Sums:
        """Also the confusion matrix: rows are true classes, columns are predictions."""
        logits, labels = self._logits(model, batch), batch["labels"]
        loss = summed_task_loss(logits, labels)
        if self.denoises:
            return {"loss": float(loss), "terms": len(labels)}
        pairs = labels * self.classes + logits.argmax(dim=-1)
        confusion = pairs.bincount(minlength=self.classes**2).view(self.classes, self.classes)
        return {"loss": float(loss), "terms": len(labels), "confusion": confusion.cpu().numpy()}

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        given = {name: batch[name] for name in ("key_mask", "select") if name in batch}
        logits: Tensor = model(batch["ids"], **given)  # (B, classes), or (K, V)
        return logits.float()

    def metrics(self, split: str, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Loss and accuracy, and for a whole split the confusion matrix; when denoising, loss and perplexity."""
        count, confusion = sums["terms"], sums.get("confusion")
        mean, context = sums["loss"] / max(count, 1), {"context": self.data.context}
        if confusion is None:
            return {"split": split, "loss": mean, "perplexity": task_perplexity(mean), "tokens": count, **context}
        accuracy = float(np.trace(confusion)) / count
        found: dict[str, Any] = {"split": split, "loss": mean, "accuracy": accuracy, "samples": count, **context}
        return {**found, "confusion": confusion.tolist()} if count == self.count(split) else found


def make_lra_batch(ids: Indices, real: NDArray[np.bool_], labels: Indices) -> Batch:
    """`ids` and `labels` as tensors, and `key_mask` if there is padding."""
    batch = {"ids": ids, "labels": labels}
    return task_tensors(batch if real.all() else {**batch, "key_mask": real})


def generated_lra_sizes(count: int, held_out: float) -> dict[str, int]:
    """Number of samples per split if `count` samples are generated."""
    blank = Sequences(np.zeros(0, np.int64), np.zeros(count + 1, np.int64), np.zeros(count, np.int64))
    return {split: len(part) for split, part in blank.split(held_out).items()}
