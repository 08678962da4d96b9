"""The optimizer: AdamW with decoupled weight decay on every parameter, its state as named tensors, and clipping.

Like the papers, it decays all parameters, including biases, norms and embeddings.
"""

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from linnet.config import TrainConfig
from linnet.distributed.spread import own_part, whole_number
from linnet.errors import LinnetError
from linnet.models.backbone import Model

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def make_optimizer(model: nn.Module, train: TrainConfig) -> AdamW:
    """AdamW over all parameters; the loop sets its learning rate before each update."""
    return AdamW(model.parameters(), train.lr, train.betas, train.eps, weight_decay=train.weight_decay, fused=True)


def optimizer_tensors(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """The state of the optimizer under the names of the parameters: `exp_avg/embedding.weight`."""
    return {
        f"{moment}/{name}": optimizer.state[parameter][moment]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state  # a parameter that no loss has reached has no state
        for moment in MOMENTS
    }


def load_optimizer(model: nn.Module, optimizer: AdamW, tensors: dict[str, Tensor], step: int | None = None) -> None:
    """Restore what `optimizer_tensors` returned; names, types and shapes must match this model.

    With `step`, each parameter must have a state after exactly this many updates.
    """
    left = dict(tensors)
    for name, parameter in model.named_parameters():
        found = {moment: left.pop(f"{moment}/{name}") for moment in MOMENTS if f"{moment}/{name}" in left}
        part = own_part(parameter.detach())
        if not part.numel() and found:  # a rank that has no row of it
            found = {"exp_avg": part, "exp_avg_sq": part, **found}
        forms = {moment: (tuple(tensor.shape), tensor.dtype) for moment, tensor in found.items()}
        own = (tuple(part.shape), parameter.dtype)
        if (found or step) and forms != dict(zip(MOMENTS, (own, own, ((), torch.float32)), strict=True)):
            raise LinnetError(f"the checkpoint's optimizer does not fit this model: the state of {name} differs")
        if found and step is not None and float(found["step"]) != step:
            raise LinnetError(
                f"the checkpoint's optimizer is not of step {step}: {name} has had {float(found['step']):g} updates"
            )
        if found:
            optimizer.state[parameter] = {m: _moment_like(parameter, t) for m, t in found.items()}
    if left:
        raise LinnetError(f"the checkpoint's optimizer does not fit this model: it has {min(left)}")


def _moment_like(parameter: nn.Parameter, tensor: Tensor) -> Tensor:
    """A copy of a moment, sharded like its parameter; the number of steps is whole."""
    if own_part(parameter) is parameter or not tensor.dim():
        return tensor.to(parameter.device, copy=True)
    moment = torch.zeros_like(parameter.detach())
    own_part(moment).copy_(tensor)
    return moment


def optim_layer_norms(model: Model, count: float) -> list[float]:
    """Gradient norms of the layers, from the first on, divided by the number of terms in the sum."""
    layers = [[p.grad for p in block.parameters() if p.grad is not None] for block in model.blocks]
    norms = [whole_number(nn.utils.get_total_norm(gradients, foreach=True)) for gradients in layers]
    return [norm / count for norm in norms]


def finish_optim_gradients(model: nn.Module, count: float, clip: float, clip_value: float = 0.0) -> float:
    """Divide summed gradients by the number of terms, clip their norm and then each entry (0: no clipping).

    Gradients that are means over ranks are divided by the number of terms per rank.

    Returns the norm before clipping.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = whole_number(nn.utils.get_total_norm(gradients, foreach=True)) / count
    gradients = [own_part(gradient) for gradient in gradients]
    factor = min(1.0, clip / norm) if clip and norm else 1.0
    torch._foreach_mul_(gradients, factor / count)
    if clip_value:
        torch._foreach_clamp_min_(gradients, -clip_value)
        torch._foreach_clamp_max_(gradients, clip_value)
    return norm
