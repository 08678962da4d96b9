"""The interface between a task and the training loop: its [data] table, batches, loss, metrics and checkpoint rule.

A task turns sample numbers into batches, a batch into a loss, and sums of losses into metrics. All of this is a pure
function of the seed and of counters that start with the run, so nothing has to be saved.

A task file imports torch only inside its functions. So one class declares everything about a task, including its [data]
table, and a mistake in a recipe is still reported before the slow import of torch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from linnet.config import DataSettings, RunConfig
from linnet.data.corpora import SPLITS
from linnet.data.packing import IGNORE, packed_batch_epochs, packed_batch_indices
from linnet.errors import InputError, UnsupportedError, unknown_name_error

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from linnet.models.config import ModelConfig

Batch = dict[str, "Tensor"]
Sums = dict[str, Any]  # numbers and arrays
Indices = NDArray[np.int64]
Work = Callable[[str], Callable[[int, int], None]]  # announces a piece of work, returns its progress(done, total)

EVALUATION = 2**32  # the "epoch" of an evaluation's random draws: training never reaches it, so they never change


class Task(ABC):
    """Data, output, loss, metric and checkpoint rule of one run."""

    Data: ClassVar[type[DataSettings]]  # the [data] table; it always has a `context`, the length of a sample
    output: ClassVar[str]  # the model's output that this task trains
    scored: ClassVar[Literal["best", "last"]] = "last"  # the checkpoint that is scored; `rank` finds "best"
    validates_on_test: ClassVar[bool] = False  # True if a benchmark has no validation split of its own
    data: Any
    sliceable: ClassVar[bool] = False  # whether ranks can share a sequence: `slice_batch` cuts it
    share: tuple[int, int] = (0, 1)  # which part of the rows of each training batch this rank reads, and of how many
    token_slice: tuple[int, int] = (0, 1)  # which slice of their tokens, and of how many

    def __init__(
        self, config: RunConfig, cache: Path | None = None, folder: Path | None = None, work: Work | None = None
    ) -> None:
        """Prepare the data. `cache` stores data that are slow to prepare; `folder` is the run folder, if it exists."""
        self.config = config
        self.data = config.data
        place = getattr(config.data, "cache", None)
        self.cache = Path(place) if cache is None and place is not None else cache
        self.folder = folder
        self.work = work or (lambda what: lambda done, total: None)

    @staticmethod
    def places(data: Any) -> dict[str, Path]:
        """Default paths, by key of [data], for paths that the configuration does not set."""
        return {}

    @staticmethod
    def fresh(data: Any) -> dict[str, Any]:
        """Settings that a new run records if its recipe leaves them open, by key of [data]."""
        return {}

    def remarks(self) -> list[str]:
        """Lines about the data that a user should see before training."""
        return []

    @staticmethod
    def generated(data: Any) -> dict[str, int]:
        """Number of samples per split if the task generates `data.count` of them; otherwise empty."""
        return {}

    @staticmethod
    def sequences(data: Any) -> int:
        """Number of sequences in one sample, each of at most `data.context` tokens."""
        return 1

    @staticmethod
    def denoising(data: Any) -> DataSettings | None:
        """The settings to pretrain a model on the task's own training samples; None if the task cannot."""
        return None

    @staticmethod
    def rank(metrics: Mapping[str, Any]) -> float:
        """The number that ranks checkpoints on the validation split; lower is better."""
        return float(metrics["loss"])

    @classmethod
    def planned_fields(cls, data: Any, pretrain: bool = False) -> dict[str, Any]:
        """The model fields that the configuration determines before the data are read."""
        return {}

    @abstractmethod
    def model_fields(self) -> dict[str, Any]:
        """The model fields that the data determine, such as the vocabulary size."""

    def different_tokens(self) -> int:
        """Number of distinct tokens, including those the task adds, such as the mask."""
        return int(self.model_fields()["vocab_size"])

    def check_model(self, model: ModelConfig) -> None:
        """Raise if the model has the wrong output, or lacks an embedding for a token or a position."""
        output = self.model_fields().get("output", self.output)
        if model.output != output:
            raise InputError(f"model.output is {model.output!r}: the task {self.config.task} needs {output!r}")
        tokens, context = self.different_tokens(), self.data.context
        if model.vocab_size < tokens:
            raise InputError(f"model.vocab_size is {model.vocab_size}: the data have {tokens} different tokens")
        if model.positions == "learned" and model.max_length < context:
            raise InputError(f"model.max_length is {model.max_length}: data.context is {context}")
        slices = self.token_slice[1]
        if slices > 1 and not self.sliceable:
            name = self.config.task
            raise UnsupportedError(f"distributed.mesh.sequence is {slices}: sequences of the task {name} cannot be cut")
        if context % slices:
            raise InputError(f"data.context is {context}: it must be a multiple of distributed.mesh.sequence, {slices}")

    def at_once(self) -> tuple[int, int]:
        """The smallest number of tokens in a training forward pass, and the number of logits that it computes."""
        return 0, 0

    def words(self, ids: Sequence[int]) -> tuple[list[str], str]:
        """Tokens as text, and the separator between two of them; by default their ids."""
        return [str(token) for token in ids], " "

    @abstractmethod
    def fingerprint(self) -> dict[str, str]:
        """Hashes of the data by split; a run resumes only with the data it was started with."""

    def prepare(self) -> None:  # noqa: B027  most tasks have nothing to add to their constructor
        """Prepare the data that only a run needs, not a dry run."""

    def planned(self) -> dict[str, Any]:
        """What a dry run reports about the data: the number of `samples` per split, and possibly more."""
        return {"samples": {split: self.count(split) for split in SPLITS}}

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files that a run needs besides its weights, such as the tokenizer."""

    @abstractmethod
    def count(self, split: str) -> int:
        """Number of samples."""

    @abstractmethod
    def batch(self, split: str, samples: Indices, epochs: Indices) -> Batch:
        """The tensors of these samples; randomness in a sample is redrawn in each epoch."""

    def parts(self, batch: Batch) -> list[Batch]:
        """The parts of a batch to compute one by one: the whole batch, unless smaller parts are faster."""
        return [batch]

    def batch_tokens(self, batch: Batch) -> int:
        """Number of real tokens in a batch."""
        return int(batch["key_mask"].sum()) if "key_mask" in batch else batch["ids"].numel()

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """The summed loss of a batch, and the number of terms in the sum."""

    def measure(self, model: nn.Module, batch: Batch) -> Sums:
        """The sums of one batch for an evaluation: the loss, its number of terms, and other counts."""
        loss, terms = self.loss(model, batch)
        return {"loss": float(loss), "terms": terms}

    @abstractmethod
    def metrics(self, split: str, sums: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics, given the sums of `measure` over a split or a part of it."""

    def train_batch(self, number: int) -> Batch:
        """Batch `number` of the run, counted over all updates and micro-batches; a rank reads its part of the rows."""
        samples, epochs = self.train_samples(number)
        rank, world = self.share
        size = len(samples) // world
        own = slice(rank * size, (rank + 1) * size)
        return self.slice_batch(self.batch("train", samples[own], epochs[own]))

    def slice_batch(self, batch: Batch) -> Batch:
        """This rank's slice of the tokens of a batch; a task that is `sliceable` cuts it."""
        return batch

    def train_samples(self, number: int) -> tuple[Indices, Indices]:
        """The samples of batch `number` of the run, and the epoch of each: a function of the seed and the number."""
        size, count = self.config.train.batch, self.count("train")
        samples = packed_batch_indices(self.config.seed, 0, number, size, count)
        return samples, packed_batch_epochs(0, number, size, count)

    def sample(self, split: str, count: int) -> Indices:
        """Which `count` samples to evaluate on; by default the first."""
        return np.arange(count)

    def evaluate(
        self,
        model: nn.Module,
        split: str,
        batches: int = 0,
        device: torch.device | str = "cpu",
        progress: Callable[[int, int], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any] | None:
        """The metrics of a whole split, or of `batches` batches of it (0: all); None if `stop` ends it early."""
        import torch

        chosen = self.evaluation_batches(split, batches)
        training = model.training
        model.eval()
        sums: Sums = {}
        try:
            for number, indices in enumerate(chosen, 1):
                if stop():
                    return None
                for part in self.evaluation_parts(split, indices, device):
                    with torch.no_grad():
                        sums = add_task_sums(sums, self.measure(model, part))
                if progress is not None:
                    progress(number, len(chosen))
        finally:
            model.train(training)
        return self.metrics(split, sums)

    def evaluation_batches(self, split: str, batches: int = 0) -> list[Indices]:
        """The samples of each batch of an evaluation: of a whole split, or of `batches` batches of it."""
        if split not in SPLITS:
            raise unknown_name_error("split", split, SPLITS)
        size, count = self.config.train.batch, self.count(split)
        chosen = np.arange(count) if not 0 < batches * size < count else self.sample(split, batches * size)
        return [chosen[start : start + size] for start in range(0, len(chosen), size)]

    def evaluation_parts(self, split: str, samples: Indices, device: torch.device | str) -> list[Batch]:
        """The parts of one batch of an evaluation, on the device."""
        batch = self.batch(split, samples, np.full_like(samples, EVALUATION))
        return self.parts(task_batch_to_device(self.slice_batch(batch), device))


def add_task_sums(sums: Sums, more: Sums) -> Sums:
    """The sums over two parts of a split; one may lack names that the other has."""
    return {name: sums.get(name, 0) + more.get(name, 0) for name in {**sums, **more}}


def task_tensors(arrays: Mapping[str, NDArray[Any]]) -> Batch:
    """Arrays as tensors that share their memory."""
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def summed_task_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy in nats of logits (K,V), summed over the targets (K,) that are not IGNORE."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum")


def task_batch_to_device(batch: Batch, device: torch.device | str) -> Batch:
    """All tensors of a batch on a device."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def task_perplexity(loss: float) -> float:
    """exp of a mean loss; infinite if a float cannot hold it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
