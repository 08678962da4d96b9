"""Instruments during training: measure the attention on one block of text every `instrument_every` updates.

They only read the weights and draw no random numbers, so they do not change the bits of a run.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnet.errors import InputError, unknown_name_error
from linnet.instruments.analyze import analyze_views
from linnet.instruments.base import instrument_views_of_model
from linnet.models.backbone import Model
from linnet.registry import INSTRUMENT
from linnet.tasks.base import EVALUATION, Task

DIGITS = 6


def check_watch_instruments(names: Sequence[str]) -> None:
    """Raise for an instrument that does not give one number per head, so cannot be recorded during training."""
    able = [name for name in INSTRUMENT.names() if INSTRUMENT[name].shows and INSTRUMENT[name].reads == "weights"]
    for name in names:
        if name in INSTRUMENT and name not in able:
            allowed = f"one of {', '.join(able)}"
            raise InputError(f"train.instruments has {name!r}, which does not give one number per head: {allowed}")
        if name not in INSTRUMENT:
            raise unknown_name_error("train.instruments", name, able)


def watch_blocks(task: Task, count: int) -> Tensor:
    """The first full blocks (B,N) of the validation split, at most `count`; if none is full, the first one, cut.

    Each sequence of a pair is a block. Padding has no effect, so it can be cut off. Images are pixels (B,C,S,S).
    """
    samples = np.arange(min(count, task.count("valid")))
    batch = task.batch("valid", samples, np.full_like(samples, EVALUATION))
    if "pixels" in batch:
        return batch["pixels"]
    ids = batch["ids"].flatten(0, -2)[:count]
    real = batch.get("key_mask", torch.ones_like(batch["ids"])).flatten(0, -2)[:count].bool()
    whole = real.all(dim=1)
    return ids[whole] if bool(whole.any()) else ids[:1][real[:1]][None]


class Watch:
    """`read` returns the numbers of the instruments by layer and head, on the first validation block."""

    def __init__(self, names: Sequence[str], task: Task, device: torch.device) -> None:
        self.names = names
        self.ids = watch_blocks(task, 1).to(device)

    def refusals(self, model: Model) -> list[str]:
        """One line for each instrument that cannot measure any layer of this model, so records nothing."""
        lines = []
        with _evaluating(model):
            views = instrument_views_of_model(model, self.ids)
            for name in dict.fromkeys(self.names):
                found = [INSTRUMENT[name]().refusal(view) for view in views]
                if all(found):
                    lines.append(f"train.instruments has {name!r}, which records nothing here: {found[0]}")
        return lines

    def read(self, model: Model) -> dict[str, Any]:
        """`layers`, and for each instrument a list over layers of lists over heads; None if it refuses a layer."""
        with _evaluating(model):
            layers = analyze_views(instrument_views_of_model(model, self.ids), self.names)["layers"]
        values: dict[str, dict[str, list[Any]]] = {}
        for name in self.names:
            for value in INSTRUMENT[name].shows:
                found = [layer["values"].get(name, {}).get(value) for layer in layers]
                if any(heads is not None for heads in found):
                    values.setdefault(name, {})[value] = [_short(heads) for heads in found]
        return {"layers": [layer["name"] for layer in layers], "values": values}


@contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """Put the model in evaluation mode, and restore its mode afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _short(heads: list[float | None] | None) -> list[float | None] | None:
    """The values rounded to the digits that a curve needs."""
    return None if heads is None else [None if x is None else float(f"{x:.{DIGITS}g}") for x in heads]
