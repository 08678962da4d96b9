"""Pretrained initial weights: from a run inside this one that denoises its samples, or from an encoder."""

from collections.abc import Callable
from pathlib import Path

from linnet.config import RunConfig
from linnet.models.backbone import Model
from linnet.models.loading import load_model, load_model_weights
from linnet.registry import TASK


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


def pretrained_encoder(config: RunConfig) -> Path | None:
    """The run or exported folder that provides the initial weights of a new run; None for random weights."""
    encoder = getattr(config.data, "encoder", None)
    return None if encoder is None or config.data.scratch else Path(encoder)  # type: ignore[attr-defined]


def take_over_pretrained(model: Model, folder: Path, warn: Callable[[str], None]) -> str:
    """Copy the weights of the model in `folder` into `model`, except the output, which differs.

    Returns a line that says what was loaded and what is new.
    """
    learned = load_model(folder, warn=warn).state_dict()
    kept = {name: tensor for name, tensor in learned.items() if not name.startswith("output.")}
    own = model.state_dict()
    new = [name for name in own if name not in kept]
    load_model_weights(model, {**{name: own[name] for name in new}, **kept}, folder)
    return f"loaded {len(kept)} tensors of {folder}; new are {', '.join(new)}"
