"""What stops a run in good order: signals from outside, and numbers that are no longer finite."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from linnet.errors import LinnetError


class NonFiniteError(LinnetError):
    """A loss, gradient or weight is NaN or infinite; the message names the step and where it was found."""


class Stop:
    """`with Stop() as stop:` SIGTERM and SIGINT set `stop.signal` (0: none came); a second one exits at once."""

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        return self.signal != 0

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            os._exit(128 + number)
        self.signal = number


@contextlib.contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """On a CPU, use only algorithms whose result does not depend on how threads race."""
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


def bad_tensors(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names, in order, whose tensors are not finite everywhere."""
    return [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]


def bad_place(model: nn.Module, forward: Callable[[], object]) -> str:
    """Where a forward pass first leaves the finite numbers: a weight, or else the innermost module."""
    bad = bad_tensors(dict(model.named_parameters()))
    if bad:
        return f"the weight {bad[0]}"
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(module: nn.Module, args: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
                found.append(name)

        return look

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return f"the output of {found[0]}" if found else "the loss itself"


def bad_gradient(model: nn.Module) -> str:
    """The parameter nearest to where a gradient left the finite numbers: backward goes from the last to the first."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    bad = bad_tensors(gradients)
    if bad:
        return f"the gradient of {bad[-1]}"
    largest = max(gradients, key=lambda name: float(gradients[name].abs().max()))
    return f"the norm of the gradients, the largest of which is that of {largest}"
