"""The shared part of tasks on sentences and pairs: a pretrained encoder reads them, and a new head answers.

Texts become `<s> A </s>`, and pairs `<s> A </s></s> B </s>`, as in RoBERTa. If a pair is too long, its longer text
is cut. The tokenizer is the encoder's, so a run keeps a copy of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from linnet.config import DataSettings, Place, RunConfig
from linnet.data.labeled_texts import LabeledTexts
from linnet.data.tokenizer import Tokenizer
from linnet.errors import InputError
from linnet.tasks.base import Batch, Indices, Sums, Task, Work, summed_task_loss, task_tensors
from linnet.tasks.metrics import METRICS
from linnet.tasks.parts import split_batch_by_length

if TYPE_CHECKING:
    from torch import Tensor, nn

    from linnet.models.config import ModelConfig

ROWS = 8  # rows of a batch that are computed at once
LEADING = ("matthews", "f1", "spearman", "accuracy")  # the first of these that a task has ranks its checkpoints


class SentenceData(DataSettings):
    """The texts, and the encoder that reads them: a run of masked_lm, or a folder that `linnet export` wrote."""

    path: Place = None
    encoder: Place = None
    encoder_sha256: str | None = None
    scratch: bool = False  # take the encoder's shape and tokenizer, but not its weights
    context: Annotated[int, Field(ge=8, le=10**6)] = 128
    pooling: Literal["first", "mean"] = "first"
    variant: Annotated[int, Field(ge=0, le=10**9)] = 0  # the seed of a split that is drawn

    def check(self) -> None:
        """Raise if there is no encoder."""
        if self.encoder is None:
            raise InputError("data.encoder is missing: set it to a run of masked_lm, or use `linnet finetune RUN TASK`")


class SentenceTask(Task):
    """Classify or score texts or pairs of texts."""

    Data = SentenceData
    data: Any
    output = "sentence"
    scored = "best"
    metric_names: ClassVar[Sequence[str]] = ("accuracy",)

    def __init__(
        self, config: RunConfig, cache: Path | None = None, folder: Path | None = None, work: Work | None = None
    ) -> None:
        super().__init__(config, cache, folder, work)
        self.tokenizer = self._own_tokenizer()
        self.texts = self.read()
        self._encoded: dict[str, list[NDArray[np.int64]]] = {}

    @abstractmethod
    def read(self) -> dict[str, LabeledTexts]:
        """The texts of each split."""

    @property
    @abstractmethod
    def classes(self) -> Sequence[str]:
        """The names of the classes; none if texts have scores."""

    @staticmethod
    def fresh(data: Any) -> dict[str, Any]:
        """The hash of the encoder's weights, so that the run records its starting point."""
        if data.encoder is None or data.encoder_sha256 is not None:
            return {}
        from linnet.models.loading import weights_sha256_to_load

        return {"encoder_sha256": weights_sha256_to_load(Path(data.encoder))}

    @staticmethod
    def rank(metrics: Mapping[str, Any]) -> float:
        """The best checkpoint has the highest leading metric."""
        return -float(next(metrics[name] for name in LEADING if name in metrics))

    def _own_tokenizer(self) -> Tokenizer:
        """The tokenizer of the run, or that of the encoder."""
        places = [self.folder, None if self.data.encoder is None else Path(self.data.encoder)]
        for place in places:
            if place is not None and (place / "tokenizer.json").exists():
                return Tokenizer.load(place / "tokenizer.json")
        raise InputError(f"data.encoder is {self.data.encoder!r}: it has no tokenizer.json, so it cannot read text")

    def encoder_fields(self) -> dict[str, Any]:
        """Every field of the encoder's model; raises if it is not an encoder."""
        from linnet.models.loading import load_model_config

        config = load_model_config(Path(self.data.encoder))
        if config.causal or config.output != "masked_lm":
            what = "reads only what came before" if config.causal else f"ends in {config.output!r}"
            raise InputError(f"data.encoder is {self.data.encoder!r}: its model {what}; it must be a masked_lm")
        return config.model_dump(mode="json", exclude_none=True)

    def model_fields(self) -> dict[str, Any]:
        """The fields of the encoder, with the new head."""
        return {**self.encoder_fields(), **self._head()}

    def _head(self) -> dict[str, Any]:
        return sentence_head(self.data.pooling, self.classes)

    def different_tokens(self) -> int:
        """The size of the vocabulary."""
        return self.tokenizer.vocab_size

    def check_model(self, model: ModelConfig) -> None:
        """Raise if the head, the vocabulary or the positions do not fit the task."""
        for name, value in self._head().items():
            if getattr(model, name) != value:
                raise InputError(
                    f"model.{name} is {getattr(model, name)!r}: the task {self.config.task} needs {value!r}"
                )
        if model.vocab_size != self.tokenizer.vocab_size:
            size = self.tokenizer.vocab_size
            raise InputError(f"model.vocab_size is {model.vocab_size}: the encoder's tokenizer has {size} tokens")
        if model.positions == "learned" and model.max_length < self.data.context:
            raise InputError(f"data.context is {self.data.context}: the encoder has {model.max_length} positions")

    def remarks(self) -> list[str]:
        """Sizes of the splits, and how many texts are cut at the context."""
        sizes = ", ".join(f"{split} {len(texts):,}" for split, texts in self.texts.items())
        cut = sum(len(ids) == self.data.context for ids in self.encoded("train"))
        return [f"texts: {sizes}; {cut:,} of the training texts are cut at data.context = {self.data.context}"]

    def words(self, ids: Sequence[int]) -> tuple[list[str], str]:
        """The tokens as the tokenizer shows them."""
        return self.tokenizer.words(ids)

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 of each split and of the tokenizer."""
        return {
            **{split: texts.texts_sha256() for split, texts in self.texts.items()},
            "tokenizer": self.tokenizer.sha256,
        }

    def save(self, folder: Path) -> None:
        """Write a copy of the encoder's tokenizer."""
        self.tokenizer.save(folder / "tokenizer.json")

    def count(self, split: str) -> int:
        """Number of texts."""
        return len(self.texts[split])

    def encoded(self, split: str) -> list[NDArray[np.int64]]:
        """The ids of each text of a split."""
        if split not in self._encoded:
            self._encoded[split] = self.encode_texts(self.texts[split])
        return self._encoded[split]

    def encode_texts(self, texts: LabeledTexts) -> list[NDArray[np.int64]]:
        """The ids of texts or pairs, with their special tokens, none longer than `data.context`."""
        show, encode = self.work("encoding the texts"), self.tokenizer.encode
        found = []
        for i, first in enumerate(texts.first):
            second = None if texts.second is None else encode(texts.second[i])
            found.append(self._joined(encode(first), second))
            if i % 1000 == 999:
                show(i + 1, len(texts))
        return found

    def _joined(self, first: list[int], second: list[int] | None) -> NDArray[np.int64]:
        """`<s> A </s>` or `<s> A </s></s> B </s>`; the longer half of a long pair is cut first."""
        bos, eos = Tokenizer.bos, Tokenizer.eos
        if second is None:
            return np.array([bos, *first[: self.data.context - 2], eos])
        room = self.data.context - 4
        a, b = len(first), len(second)
        if a + b > room:
            a, b = (
                (room - b, b)
                if b <= room // 2
                else (a, room - a)
                if a <= room - room // 2
                else (room - room // 2, room // 2)
            )
        return np.array([bos, *first[:a], eos, eos, *second[:b], eos])

    def batch(self, split: str, samples: Indices, epochs: Indices) -> Batch:
        """`ids` (B,N), `labels` (B,), `key_mask` (B,N) if there is padding, and the place of each row in the split."""
        encoded = self.encoded(split)
        arrays = self._padded([encoded[i] for i in samples])
        labels = self.texts[split].labels[samples]
        arrays["labels"] = labels.astype(np.int64) if self.classes else labels.astype(np.float32)
        arrays["place"] = np.asarray(samples, np.int64)
        arrays["size"] = np.full(len(samples), self.count(split), np.int64)
        return task_tensors(arrays)

    def _padded(self, rows: Sequence[NDArray[np.int64]]) -> dict[str, NDArray[Any]]:
        width = max(map(len, rows))
        ids = np.full((len(rows), width), Tokenizer.pad, np.int64)
        real = np.zeros((len(rows), width), np.bool_)
        for row, one in enumerate(rows):
            ids[row, : len(one)], real[row, : len(one)] = one, True
        return {"ids": ids} if real.all() else {"ids": ids, "key_mask": real}

    def parts(self, batch: Batch) -> list[Batch]:
        """On a CPU, a few rows of similar length at a time."""
        return split_batch_by_length(batch, ROWS)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Cross entropy in nats, or the squared error of a score, summed over the texts."""
        return self._loss(self._logits(model, batch), batch), len(batch["labels"])

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:
        if self.classes:
            return summed_task_loss(logits, batch["labels"])
        return (logits[:, 0] - batch["labels"]).square().sum()

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch["ids"], key_mask=batch.get("key_mask"))  # (B, classes)
        return logits.float()

    def measure(self, model: nn.Module, batch: Batch) -> Sums:
        """Also the answers and the truth, each at its place in the split."""
        logits = self._logits(model, batch)
        place, size = batch["place"].cpu().numpy(), int(batch["size"][0])
        answer = logits.argmax(dim=-1) if self.classes else logits[:, 0]
        sums: Sums = {"loss": float(self._loss(logits, batch)), "terms": len(place)}
        for name, values in (("truth", batch["labels"]), ("answer", answer), ("seen", batch["place"] >= 0)):
            sums[name] = np.zeros(size)
            sums[name][place] = values.cpu().numpy()
        return sums

    def metrics(self, split: str, sums: Mapping[str, Any]) -> dict[str, Any]:
        """The loss and the task's metrics, and for a whole split of classes the confusion matrix."""
        seen = sums["seen"] > 0
        truth, answer = sums["truth"][seen], sums["answer"][seen]
        found: dict[str, Any] = {"split": split, "loss": sums["loss"] / max(sums["terms"], 1)}
        found |= {name: METRICS[name](truth, answer) for name in self.metric_names}
        found |= {"samples": int(sums["terms"]), "context": self.data.context}
        if self.classes and found["samples"] == self.count(split):
            n = len(self.classes)
            pairs = (truth * n + answer).astype(np.int64)
            found["confusion"] = np.bincount(pairs, minlength=n * n).reshape(n, n).tolist()
        return found

    def answers(self, model: nn.Module, texts: LabeledTexts) -> list[str]:
        """The answer of the model to each text: the name of a class, or a score."""
        return [self.answer_text(logits) for logits in self._read(model, self.encode_texts(texts))]

    def answer_text(self, logits: Tensor) -> str:
        """The name of the class with the largest logit (classes,), or the score."""
        return self.classes[int(logits.argmax())] if self.classes else f"{float(logits[0]):.3f}"

    def judge_texts(self, model: nn.Module, split: str) -> list[dict[str, Any]]:
        """The row, texts, truth, answer and error of each text of a split.

        The error is the loss in nats, or the distance from the true score.
        """
        texts, found = self.texts[split], []
        for i, logits in enumerate(self._read(model, self.encoded(split))):
            label = texts.labels[i]
            if self.classes:
                truth, error = self.classes[int(label)], -float(logits.log_softmax(0)[int(label)])
            else:
                truth, error = f"{label:g}", abs(float(logits[0]) - label)
            halves = [half[i] for half in (texts.first, texts.second) if half is not None]
            answer = self.answer_text(logits)
            found.append({"row": texts.rows[i], "texts": halves, "truth": truth, "answer": answer, "error": error})
        return found

    def _read(self, model: nn.Module, encoded: Sequence[NDArray[np.int64]]) -> list[Tensor]:
        """The logits (classes,) of each text; texts of similar length are read together."""
        import torch

        size, device = self.config.train.batch, next(model.parameters()).device
        order = np.argsort([len(ids) for ids in encoded], kind="stable")
        found: dict[int, Tensor] = {}
        show = self.work("predicting")
        for start in range(0, len(order), size):
            rows = order[start : start + size].tolist()
            batch = {name: x.to(device) for name, x in task_tensors(self._padded([encoded[i] for i in rows])).items()}
            with torch.no_grad():
                found.update(zip(rows, self._logits(model, batch).cpu(), strict=True))
            show(start + len(rows), len(order))
        return [found[i] for i in range(len(encoded))]

    @abstractmethod
    def unlabeled(self, path: Path | None) -> LabeledTexts:
        """The texts to predict: those of a file, or by default of the task's test set."""

    @cached_property
    def header(self) -> tuple[str, str]:
        """The header of a file of predictions."""
        return ("index", "prediction")


def sentence_head(pooling: str, classes: Sequence[str]) -> dict[str, Any]:
    """The fields of the head of a model."""
    return {"output": "sentence" if pooling == "first" else "sentence_mean", "classes": len(classes) or 1}
