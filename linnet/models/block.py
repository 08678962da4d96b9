"""One layer of the backbone: residual branches around the attention and around the FFN, with a norm before or after.

A gated attention unit replaces both: with ffn = "none" a layer has only its first branch.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from linnet.attention.base import Core, Mixer, create_attention, create_mixer
from linnet.errors import UnsupportedError
from linnet.models.config import ModelConfig, split_layer_config
from linnet.models.dropout import Dropout
from linnet.models.ffn import FFNS
from linnet.ops.precision import State
from linnet.ops.rms import rms, srms
from linnet.registry import ATTENTION

BlockState = tuple[State, ...]  # one state per mechanism of the layer


class SRMS(nn.Module):
    """x / rms(x), without a gain (M2)."""

    def forward(self, x: Tensor) -> Tensor:
        return srms(x)


class _RMS(nn.Module):
    """x / rms(x) with a gain."""

    def __init__(self, M: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(M))

    def forward(self, x: Tensor) -> Tensor:
        return rms(x, self.gain)


class ScaleNorm(nn.Module):
    """g x / rms(x) with one learned scalar g."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain.to(x.dtype) * srms(x)  # M30


def create_block_norm(kind: str, M: int) -> nn.Module:
    """The norm of a model by name: "srms", "scale", "rms" or "layer"."""
    if kind in ("srms", "scale"):
        return SRMS() if kind == "srms" else ScaleNorm()
    return _RMS(M) if kind == "rms" else nn.LayerNorm(M)


class _PartMixer(Mixer):
    """A mechanism with some of a layer's heads: x (B,N,M) -> y (B,N,M).

    The sum of the parts' outputs is one output projection of their concatenated heads; its bias is the first part's.
    """

    def __init__(self, core: Core, width: int, bias: bool) -> None:
        nn.Module.__init__(self)
        self.core, self.width = core, width
        inner = core.heads * core.head_dim
        self.qkv = nn.Linear(width, self.parts * inner)
        self.out = nn.Linear(inner, width, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform, as parts of matrices (M, M); biases 0."""
        inner = self.out.in_features
        share = ((self.width + inner) / (2 * self.width)) ** 0.5
        for weight in self.qkv.weight.chunk(self.parts):
            nn.init.xavier_uniform_(weight, gain=self.core.qkv_gain * share)
        nn.init.xavier_uniform_(self.out.weight, gain=share)
        for bias in (self.qkv.bias, self.out.bias):
            if bias is not None:
                nn.init.zeros_(bias)


def _create_mixers(config: ModelConfig, layer: str) -> list[Mixer]:
    """The mixers of a layer: each has the full width, or in "a|b" a part of the heads."""
    sign, names = split_layer_config(layer)
    options = [config.options.get(name, {}) for name in names]
    if sign != "|":
        return [
            create_mixer(name, width=config.width, heads=config.heads, causal=config.causal, **own)
            for name, own in zip(names, options, strict=True)
        ]
    for name in names:
        if ATTENTION[name].mixer.__qualname__ != Core.mixer.__qualname__:
            raise UnsupportedError(f"layer {layer!r}: {name} has its own projections and cannot share the heads")
    heads, head_dim = config.heads // len(names), config.width // config.heads
    cores = [
        create_attention(name, heads=heads, head_dim=head_dim, causal=config.causal, **own)
        for name, own in zip(names, options, strict=True)
    ]
    return [_PartMixer(core, config.width, bias=i == 0) for i, core in enumerate(cores)]


class Block(nn.Module):
    """Attention, then FFN. In "a+b" and "a|b" both mechanisms read x; in "a>b", b reads the output of a."""

    mixers: Sequence[Mixer]

    def __init__(self, config: ModelConfig, layer: str) -> None:
        super().__init__()
        M, self.pre = config.width, config.norm_position == "pre"
        self.sign = split_layer_config(layer)[0]
        self.mixers = nn.ModuleList(_create_mixers(config, layer))  # type: ignore[assignment]
        self.mixer_norm = create_block_norm(config.norm, M)
        self.ffn: nn.Module | None = None
        if config.ffn != "none":
            self.ffn = FFNS[config.ffn](M, config.ffn_width, config.activation, config.ffn_dropout)
            self.ffn_norm = create_block_norm(config.norm, M)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, key_mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """x (B,N,M) -> (B,N,M)."""
        return self._after(x, self._mixed(x, lambda i, u: self.mixers[i](u, key_mask, segments)))

    def prefill(self, x: Tensor, key_mask: Tensor | None, state: BlockState | None) -> tuple[Tensor, BlockState]:
        """Like a causal `forward` that continues from `state`; also returns the state after the last real token."""
        after: list[State] = []

        def read(i: int, u: Tensor) -> Tensor:
            y, new = self.mixers[i].prefill(u, key_mask, None if state is None else state[i])
            after.append(new)
            return y

        return self._after(x, self._mixed(x, read)), tuple(after)

    def step(self, x_t: Tensor, state: BlockState) -> tuple[Tensor, BlockState]:
        """Process the next token x_t (B,1,M)."""
        after: list[State] = []

        def read(i: int, u: Tensor) -> Tensor:
            y, new = self.mixers[i].step(u, state[i])
            after.append(new)
            return y

        return self._after(x_t, self._mixed(x_t, read)), tuple(after)

    def before(self, x: Tensor) -> Tensor:
        """The input of the mixers."""
        return self.mixer_norm(x) if self.pre else x

    def _mixed(self, x: Tensor, read: Callable[[int, Tensor], Tensor]) -> Tensor:
        """The joint output of the mixers for x, where read(i, u) is the output of mixer i for u."""
        u = self.before(x)
        if self.sign == ">":
            for i in range(len(self.mixers)):
                u = read(i, u)
            return u
        ys = [read(i, u) for i in range(len(self.mixers))]
        if len(ys) == 1:
            return ys[0]
        return torch.stack(ys).sum(dim=0) if self.sign == "|" else torch.stack(ys).mean(dim=0)

    def _after(self, x: Tensor, y: Tensor) -> Tensor:
        """The residual sums and the FFN, given the mixers' output."""
        x = x + self.dropout(y)
        if self.pre:
            return x if self.ffn is None else x + self.dropout(self.ffn(self.ffn_norm(x)))
        x = self.mixer_norm(x)
        return x if self.ffn is None else self.ffn_norm(x + self.dropout(self.ffn(x)))
