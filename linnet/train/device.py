"""Device, precision and deterministic algorithms of a training run."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from linnet.config import TrainConfig
from linnet.errors import InputError


def pick_device(train: TrainConfig) -> torch.device:
    """The device that the configuration asks for; "auto" takes a GPU if there is one."""
    if train.device == "cuda" and not torch.cuda.is_available():
        raise InputError("train.device is 'cuda': torch finds no GPU here; use 'cpu' or 'auto'")
    gpu = train.device != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if gpu else "cpu")


def device_precision(train: TrainConfig, device: torch.device) -> torch.autocast:
    """Autocast to bfloat16 if the configuration asks for it; the weights stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=train.precision == "bfloat16")


@contextlib.contextmanager
def deterministic_device(device: torch.device) -> Iterator[None]:
    """On a CPU, use only deterministic algorithms, whose result does not depend on thread timing."""
    before = torch.are_deterministic_algorithms_enabled()
    if before or device.type != "cpu":
        yield
        return
    settings: Any = torch.utils.deterministic
    fill = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # a debugging aid that costs time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        settings.fill_uninitialized_memory = fill
