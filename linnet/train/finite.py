"""Find where a loss, a gradient or a weight stops being finite, for the error message."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from linnet.distributed.ranks import Ranks
from linnet.distributed.spread import own_part
from linnet.errors import LinnetError


class NonFiniteError(LinnetError):
    """A loss, gradient or weight is NaN or infinite; the message names the step and where it was found."""


def find_not_finite_tensors(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of tensors with values that are not finite, in order; of a sharded one, this rank's part is read."""
    return [name for name, tensor in tensors.items() if not bool(torch.isfinite(own_part(tensor)).all())]


def find_not_finite_place(model: nn.Module, forward: Callable[[], object], ranks: Ranks) -> str:
    """Where a forward pass first stops being finite: a weight, or else the innermost module.

    All ranks of a run look together: each may have a part of the weights only, and a pass needs all parts.
    """
    bad = find_not_finite_tensors(dict(model.named_parameters()))
    known = next(filter(None, ranks.share(bad[0] if bad else "")), "")
    if known:
        return f"the weight {known}"
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


def find_not_finite_gradient(model: nn.Module, ranks: Ranks) -> str:
    """The last parameter whose gradient is not finite: backward goes from the last to the first.

    All ranks of a run look together, each at its part.
    """
    gradients = {name: own_part(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    gradients = {name: gradient for name, gradient in gradients.items() if gradient.numel()}
    bad = find_not_finite_tensors(gradients)
    known = [name for name in ranks.share(bad[-1] if bad else "") if name]
    if known:
        return f"the gradient of {known[0]}"
    largest = max(gradients, key=lambda name: float(gradients[name].abs().max()), default="no parameter")
    return f"the norm of the gradients, the largest of which is that of {largest}"
