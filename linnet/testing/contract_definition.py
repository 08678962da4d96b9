"""An attention equals its dense definition, in values and gradients."""

import torch
from torch import Tensor

from linnet.attention.base import Core
from linnet.testing.contract_trial import Trial, contract_difference


def definition_value_difference(trial: Trial, dtype: torch.dtype) -> float:
    """Compare outputs, without masks and with them."""
    core = trial.typed(dtype)
    assert isinstance(core, Core)
    worst = 0.0
    with torch.no_grad():
        for N in trial.lengths:
            q, k, v = trial.inputs(N, dtype=dtype)
            worst = max(worst, contract_difference(core(q, k, v), trial.twin(core, q, k, v)))
            real, ids = trial.masked(N)
            both = core(q, k, v, real, ids), trial.twin(core, q, k, v, real, ids)
            worst = max(worst, contract_difference(*(o.transpose(1, 2)[real] for o in both)))
    return worst


def definition_gradient_difference(trial: Trial) -> float:
    """Compare gradients of the inputs and parameters, without masks and with them."""
    core = trial.typed(torch.float64)
    assert isinstance(core, Core)
    worst = 0.0
    for N in trial.lengths:
        inputs = [x.requires_grad_() for x in trial.inputs(N, dtype=torch.float64)]
        leaves = [*inputs, *core.parameters()]
        q, k, v = inputs
        real, ids = trial.masked(N)
        for masks, keep in (((None, None), torch.ones_like(real)), ((real, ids), real)):
            outputs = core(q, k, v, *masks), trial.twin(core, q, k, v, *masks)
            g = torch.randn_like(outputs[0]) * keep[:, None, :, None]
            worst = max(worst, difference_of_definition_gradients(outputs, leaves, g))
    return worst


def difference_of_definition_gradients(
    outputs: tuple[Tensor, Tensor], leaves: list[Tensor], g: Tensor, floor: float = 1e-5
) -> float:
    """The largest difference between the gradients of two outputs, relative to the second; `g` is that of the output.

    A gradient that is zero in exact arithmetic is only rounding errors, so the divisor is at least `floor` of the
    largest gradient of all leaves.
    """
    ours, theirs = (torch.autograd.grad(o, leaves, g) for o in outputs)
    sizes = [float(b.abs().max()) for b in theirs]
    least = max(floor * max(sizes), 1e-30)
    return max(float((a - b).abs().max()) / max(size, least) for a, b, size in zip(ours, theirs, sizes, strict=True))
