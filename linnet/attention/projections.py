"""The layers around a core: x (B,N,M) -> q, k, v (B,H,N,D), and o (B,H,N,D) -> y (B,N,M)."""

import contextlib
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linnet.config import Settings, parse_config_section
from linnet.errors import InputError
from linnet.ops.precision import accumulator_precision, keep_precision

Device = torch.device | str | None
Type = torch.dtype | None


class _Headed(Protocol):
    """What projections need of a core."""

    heads: int
    head_dim: int
    qkv_gain: ClassVar[float]
    chooses: ClassVar[bool]


def projection_rounds(x: Tensor) -> bool:
    """Whether a projection of x would be rounded to half precision."""
    if x.dtype in (torch.float16, torch.bfloat16):
        return True
    return x.device.type in ("cpu", "cuda") and torch.is_autocast_enabled(x.device.type)  # "meta" has no autocast


def project_exactly(x: Tensor, weight: Tensor, bias: Tensor | None, exact: bool) -> Tensor:
    """x W^T + b; `exact` avoids rounding to half precision, because rounded queries may choose other keys."""
    if not (exact and projection_rounds(x)):
        return F.linear(x, weight, bias)
    wide = accumulator_precision(x.dtype)
    with keep_precision(x.device):
        return F.linear(x.to(wide), weight.to(wide), None if bias is None else bias.to(wide))


class Projections(nn.Module):
    """The first projection of x, and the last one of o."""

    parts = 3  # parts of the first projection: queries, keys and values
    core: _Headed

    def __init__(self, core: _Headed) -> None:
        super().__init__()
        self.core = core
        self.width = M = core.heads * core.head_dim  # of the input and output vectors
        self.qkv = nn.Linear(M, self.parts * M)
        self.out = nn.Linear(M, M)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for each of the four projections, biases 0."""
        for weight in self.qkv.weight.chunk(self.parts):
            nn.init.xavier_uniform_(weight, gain=self.core.qkv_gain)
        nn.init.xavier_uniform_(self.out.weight)
        for layer in (self.qkv, self.out):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def _check(self, x: Tensor) -> None:
        """Raise if x does not fit."""
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != self.width:
            shape = f"has shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"is a {type(x).__name__}"
            raise InputError(f"x {shape}: it must be a tensor (batch, tokens, width) with width {self.width}")
        weight = getattr(self.out, "weight", None)  # not a tensor if the user has wrapped or quantized the projection
        if isinstance(weight, Tensor) and x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise InputError(f"x is {x.dtype}: the mixer's parameters are {weight.dtype}")

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v (B,H,N,D) of x (B,N,M)."""
        # First the parts of one tensor, then its heads: one copy joins the gradients; `unbind` would need two.
        parts = self._project(x).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.core.heads, self.core.head_dim)).transpose(1, 2) for part in parts)
        return q, k, v

    def _project(self, x: Tensor) -> Tensor:
        """The first projection of x."""
        layer = self.qkv
        if self.core.chooses and projection_rounds(x) and type(layer) is nn.Linear:  # a user's layer decides itself
            return project_exactly(x, layer.weight, layer.bias, exact=True)
        return layer(x)

    def _merge(self, o: Tensor, x: Tensor) -> Tensor:
        """y (B,N,M) of o (B,H,N,D); a gated mixer also reads x."""
        o = o.to(x.dtype) if self.core.chooses else o
        return self.out(o.transpose(1, 2).flatten(2))


def share_heads_in_attention(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values x (B,G,N,.) with the heads of q (B,H,T,.): each is repeated for the H/G heads that share it."""
    times = q.shape[1] // x.shape[1]
    return x if times == 1 else x.repeat_interleave(times, dim=1)


def attention_on_device(device: Device) -> contextlib.AbstractContextManager[Any]:
    """A context in which new tensors are created on this device; None keeps the current one."""
    return contextlib.nullcontext() if device is None else torch.device(device)


def check_attention_count(name: str, value: object) -> None:
    """Raise unless `value` is a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value!r}: it must be a whole number of at least 1")


def check_attention_causal(causal: object) -> None:
    """Raise unless `causal` is True or False."""
    if not isinstance(causal, bool):
        raise InputError(f"causal is {causal!r}: it must be True or False")


def parse_attention_options(cls: type[Settings], options: dict[str, Any], name: str) -> Settings:
    """The options of the mechanism `name`; for a dropout that it lacks the error says where dropout belongs."""
    if "dropout" in options and "dropout" not in cls.model_fields:
        cure = "put nn.Dropout after it, or give dropout to linnet.MultiheadAttention or replace_attention"
        raise InputError(f"{name} cannot drop attention weights, only its output can be dropped: {cure}")
    return parse_config_section(cls, options, name)
