"""Classify images: a vision transformer reads patches, is trained by cross entropy and measured by accuracy.

The pixels of LRA's Image are a sequence of tokens and belong to `lra/image`; here a token is a patch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from linnet.config import DataSettings, Place, RunConfig
from linnet.data.images import cifar10, digits, dogs_vs_cats, fashion_mnist
from linnet.data.images.augment import Augmentation, augment_draws, augment_pictures, mixture_partners
from linnet.data.images.folder import FolderOptions, read_folder
from linnet.data.images.pictures import PictureSet, picture_moments
from linnet.data.packing import packed_batch_indices
from linnet.errors import InputError
from linnet.registry import TASK
from linnet.tasks.base import EVALUATION, Batch, Indices, Sums, Task, Work, summed_task_loss, task_tensors

if TYPE_CHECKING:
    from torch import Tensor, nn

    from linnet.models.config import ModelConfig

SIZES = {  # pixels of a side, and channels
    "digits": (digits.SIZE, 1),
    "cifar10": (cifar10.SIZE, 3),
    "fashion-mnist": (fashion_mnist.SIZE, 1),
    "dogs-vs-cats-64": (dogs_vs_cats.SIZE, 3),
}
CLASSES: dict[str, Sequence[str]] = {
    "digits": digits.CLASSES,
    "cifar10": cifar10.CLASSES,
    "fashion-mnist": fashion_mnist.CLASSES,
    "dogs-vs-cats-64": dogs_vs_cats.CLASSES,
}
PLACES: dict[str, Callable[[], Path]] = {
    "cifar10": cifar10.cifar10_path,
    "fashion-mnist": fashion_mnist.fashion_mnist_path,
    "dogs-vs-cats-64": dogs_vs_cats.dogs_vs_cats_path,
}
FOLDER_SIZE = 64


class ImageData(DataSettings):
    """Which images, how they are cut into patches, and how they are changed while training."""

    source: Literal["digits", "cifar10", "fashion-mnist", "dogs-vs-cats-64", "folder"] = "digits"
    path: Place = None
    patch: Annotated[int, Field(ge=1, le=2**12)] = 4
    size: Annotated[int, Field(ge=1, le=2**12)] | None = None
    color: Literal["auto", "gray", "rgb"] = "auto"
    crop: Annotated[int, Field(ge=0, le=2**10)] = 0
    flip: bool = False
    mixup: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    variant: Annotated[int, Field(ge=0, le=10**9)] = 0

    @property
    def side(self) -> int:
        """Pixels along a side of an image."""
        return SIZES[self.source][0] if self.source in SIZES else self.size or FOLDER_SIZE

    @property
    def context(self) -> int:
        """Patches of an image."""
        return (self.side // self.patch) ** 2

    @model_validator(mode="after")
    def _agree(self) -> ImageData:
        if self.source != "folder":
            if self.size not in (None, self.side):
                raise ValueError(f"size is {self.size}: the images of {self.source} have {self.side} pixels")
            if self.color != "auto":
                raise ValueError(f"color is {self.color!r}: only the images of a folder are converted")
        if self.side % self.patch:
            raise ValueError(f"patch is {self.patch}: it must divide the side of an image, {self.side} pixels")
        if self.crop >= self.side:
            raise ValueError(f"crop is {self.crop}: an image has {self.side} pixels")
        return self

    def check(self) -> None:
        """Raise if the folder is missing."""
        if self.source == "folder" and self.path is None:
            raise InputError("data.path is missing: data.source=folder needs a folder with one folder per class")
        if self.source == "digits" and self.path is not None:
            raise InputError(f"data.path is {self.path!r}: the digits are part of linnet")


@TASK.add("image")
class ImageTask(Task):
    """Classes of images."""

    Data = ImageData
    data: ImageData
    output = "linear_classifier"
    scored = "best"

    def __init__(
        self, config: RunConfig, cache: Path | None = None, folder: Path | None = None, work: Work | None = None
    ) -> None:
        super().__init__(config, cache, folder, work)
        self.ignored = 0  # files in a folder that are not images
        self.set = self._read()
        self.set.check(self.data.path or self.data.source)
        self.augmentation = Augmentation(self.data.crop, self.data.flip, self.data.mixup)

    def _read(self) -> PictureSet:
        """The images of all splits."""
        data, progress = self.data, self.work("reading the images")
        if data.source == "digits":
            return digits.read_digits(data.variant)
        if data.source == "folder":
            data.check()
            options = FolderOptions(data.side, data.color, data.variant)
            found, self.ignored = read_folder(Path(str(data.path)), options, progress)
            return found
        path = Path(data.path) if data.path is not None else PLACES[data.source]()
        if data.source == "cifar10":
            return cifar10.read_cifar10(path, progress)
        if data.source == "fashion-mnist":
            return fashion_mnist.read_fashion_mnist(path)
        return dogs_vs_cats.read_dogs_vs_cats(path, data.variant, progress)

    @staticmethod
    def places(data: ImageData) -> dict[str, Path]:
        """The folder of the images in LINNET_DATA."""
        return {} if data.path is not None or data.source not in PLACES else {"path": PLACES[data.source]()}

    def remarks(self) -> list[str]:
        """The number of files that are not read."""
        other = f"{self.data.path}: {self.ignored} files are not images (.png, .jpg, .jpeg) and are ignored"
        return [other] if self.ignored else []

    @staticmethod
    def rank(metrics: Mapping[str, Any]) -> float:
        """The best checkpoint has the highest accuracy."""
        return -float(metrics["accuracy"])

    @classmethod
    def planned_fields(cls, data: Any, pretrain: bool = False) -> dict[str, Any]:
        """Sizes of the images and of a patch; channels and classes, unless a folder decides them."""
        fields = {"image_size": data.side, "patch": data.patch}
        if data.source in SIZES:
            fields |= {"channels": SIZES[data.source][1], "classes": len(CLASSES[data.source])}
        return fields

    def model_fields(self) -> dict[str, Any]:
        """Also the channels, the classes, and the mean and deviation of the training pixels."""
        train = self.set.splits["train"]
        mean, std = picture_moments(train)
        found = {"channels": train.pixels.shape[1], "classes": len(self.set.classes)}
        return {**self.planned_fields(self.data), **found, "pixel_mean": mean, "pixel_std": std}

    def check_model(self, model: ModelConfig) -> None:
        """Raise if the model reads other images, or has another output or number of classes."""
        if model.patch is None:
            raise InputError("model.patch is missing: the task image needs a model such as vanilla_vit_small")
        if model.output not in ("classifier", "linear_classifier"):
            raise InputError(f"model.output is {model.output!r}: the task image needs 'linear_classifier'")
        wanted = {**self.model_fields(), "patch": self.data.patch}
        for name in ("image_size", "patch", "channels", "classes"):
            if getattr(model, name) != wanted[name]:
                raise InputError(f"model.{name} is {getattr(model, name)}: the data have {wanted[name]}")

    def at_once(self) -> tuple[int, int]:
        """A batch of images, and no logits of tokens."""
        return self.config.train.batch * self.data.context, 0

    def batch_tokens(self, batch: Batch) -> int:
        """The patches of a batch."""
        return len(batch["pixels"]) * self.data.context

    def words(self, ids: Sequence[int]) -> tuple[list[str], str]:
        """None: a patch is not a word."""
        return [], " "

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 of each split."""
        return {split: pictures.sha256() for split, pictures in self.set.splits.items()}

    def save(self, folder: Path) -> None:
        """Write nothing: the model holds everything it needs."""

    def count(self, split: str) -> int:
        """Number of images."""
        return len(self.set.splits[split])

    def sample(self, split: str, count: int) -> Indices:
        """`count` random images, the same for all seeds: the first ones may all belong to one class."""
        return np.sort(packed_batch_indices(0, EVALUATION, 0, count, self.count(split)))

    def batch(self, split: str, samples: Indices, epochs: Indices) -> Batch:
        """`pixels` (B,C,S,S) and `labels` (B,); with mixup also the `partners`' labels and their `shares`."""
        pictures, how = self.set.splits[split], self.augmentation
        labels = pictures.labels[samples]
        if split != "train" or not how or (epochs == EVALUATION).all():
            return task_tensors({"pixels": pictures.pixels[samples], "labels": labels})
        draws = augment_draws(self.config.seed, epochs, samples)
        pixels = augment_pictures(pictures.pixels[samples], draws, how)
        if not how.mixup:
            return task_tensors({"pixels": pixels, "labels": labels})
        partners, shares = mixture_partners(draws, how.mixup, len(pictures))
        others = augment_draws(self.config.seed, epochs, partners)
        beside = augment_pictures(pictures.pixels[partners], others, how)
        part = shares[:, None, None, None]
        mixed = (pixels * (1 - part) + beside * part) / np.float32(255)
        return task_tensors(
            {"pixels": mixed, "labels": labels, "partners": pictures.labels[partners], "shares": shares}
        )

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """Cross entropy in nats, summed over the images; that of a mixture is the mixture of both."""
        logits, labels = model(batch["pixels"]).float(), batch["labels"]
        if "partners" not in batch:
            return summed_task_loss(logits, labels), len(labels)
        from torch.nn.functional import cross_entropy

        own, other = (cross_entropy(logits, batch[name], reduction="none") for name in ("labels", "partners"))
        return (own + batch["shares"] * (other - own)).sum(), len(labels)

    def measure(self, model: nn.Module, batch: Batch) -> Sums:
        """Also the confusion matrix: rows are true classes, columns are predictions."""
        logits, labels = model(batch["pixels"]).float(), batch["labels"]
        classes = len(self.set.classes)
        pairs = labels * classes + logits.argmax(dim=-1)
        confusion = pairs.bincount(minlength=classes**2).view(classes, classes)
        loss = float(summed_task_loss(logits, labels))
        return {"loss": loss, "terms": len(labels), "confusion": confusion.cpu().numpy()}

    def metrics(self, split: str, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Loss and accuracy, and for a whole split the confusion matrix with the names of the classes."""
        count, confusion = sums["terms"], sums["confusion"]
        accuracy = float(np.trace(confusion)) / count
        found: dict[str, Any] = {"split": split, "loss": sums["loss"] / count, "accuracy": accuracy, "samples": count}
        whole = {"classes": list(self.set.classes), "confusion": confusion.tolist()}
        return {**found, "context": self.data.context, **(whole if count == self.count(split) else {})}
