"""Pretraining: a separate run, inside the folder of a run, that denoises the task's training samples."""

from collections.abc import Callable
from pathlib import Path

from linnet.config import RunConfig
from linnet.errors import LinnetError
from linnet.models.backbone import Model
from linnet.models.loading import load_model_weights
from linnet.registry import TASK
from linnet.storage import newest_checkpoint


def pretrain_length(config: RunConfig) -> int:
    """The number of pretraining updates; by default as many as the task itself has."""
    return (config.train.pretrain_steps or config.train.steps) if config.pretrain else 0


def pretraining_config(config: RunConfig) -> RunConfig:
    """The configuration of the pretraining run."""
    length = pretrain_length(config)
    changes = {"steps": length, "warmup": min(config.train.warmup, length), "pretrain_steps": 0}
    train = config.train.model_copy(update=changes)
    data = TASK[config.task].denoising(config.data)
    model = {**config.model, "output": "masked_lm"}
    return config.model_copy(update={"train": train, "data": data, "pretrain": False, "model": model})


def take_over_pretrained(model: Model, folder: Path, warn: Callable[[str], None]) -> None:
    """Copy the weights of the finished run in `folder` into `model`, except the output, which differs."""
    learned = newest_checkpoint(folder / "checkpoints", warn, optimizer=False)
    if learned is None:
        raise LinnetError(f"{folder}: no checkpoint is intact; start again in another folder")
    kept = {name: tensor for name, tensor in learned.model.items() if not name.startswith("output.")}
    load_model_weights(model, {**model.state_dict(), **kept}, folder)
