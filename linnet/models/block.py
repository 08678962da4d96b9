"""One layer of the backbone: residual branches around the attention and around the FFN, with a norm before or after.

A gated attention unit replaces both: with ffn = "none" a layer has only its first branch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from linnet.attention.base import Mixer, create_mixer
from linnet.models.config import ModelConfig
from linnet.models.dropout import Dropout
from linnet.models.ffn import FFNS
from linnet.ops.precision import State
from linnet.ops.rms import rms, srms

BlockState = tuple[State, ...]  # one state per mechanism of the layer


class SRMS(nn.Module):
    """x / rms(x), without a gain (M2)."""

    def forward(self, x: Tensor) -> Tensor:
        return srms(x)


class RMS(nn.Module):
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


def create_norm(kind: str, M: int) -> nn.Module:
    """The norm of a model by name: "srms", "scale", "rms" or "layer"."""
    if kind in ("srms", "scale"):
        return SRMS() if kind == "srms" else ScaleNorm()
    return RMS(M) if kind == "rms" else nn.LayerNorm(M)


class Block(nn.Module):
    """Attention, then FFN; the mechanisms of "a+b" read the same input and their outputs are averaged."""

    mixers: Sequence[Mixer]

    def __init__(self, config: ModelConfig, layer: str) -> None:
        super().__init__()
        M, self.pre = config.width, config.norm_position == "pre"
        self.mixers = nn.ModuleList(  # type: ignore[assignment]
            create_mixer(name, width=M, heads=config.heads, causal=config.causal, **config.options.get(name, {}))
            for name in layer.split("+")
        )
        self.mixer_norm = create_norm(config.norm, M)
        self.ffn: nn.Module | None = None
        if config.ffn != "none":
            self.ffn = FFNS[config.ffn](M, config.ffn_width, config.activation, config.ffn_dropout)
            self.ffn_norm = create_norm(config.norm, M)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, key_mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """x (B,N,M) -> (B,N,M)."""
        u = self.before(x)
        return self._after(x, [mixer(u, key_mask, segments) for mixer in self.mixers])

    def prefill(self, x: Tensor, key_mask: Tensor | None, state: BlockState | None) -> tuple[Tensor, BlockState]:
        """Like a causal `forward` that continues from `state`; also returns the state after the last real token."""
        u = self.before(x)
        states = state if state is not None else (None,) * len(self.mixers)
        done = [mixer.prefill(u, key_mask, s) for mixer, s in zip(self.mixers, states, strict=True)]
        return self._after(x, [y for y, _ in done]), tuple(s for _, s in done)

    def step(self, x_t: Tensor, state: BlockState) -> tuple[Tensor, BlockState]:
        """Process the next token x_t (B,1,M)."""
        u = self.before(x_t)
        done = [mixer.step(u, s) for mixer, s in zip(self.mixers, state, strict=True)]
        return self._after(x_t, [y for y, _ in done]), tuple(s for _, s in done)

    def before(self, x: Tensor) -> Tensor:
        """The input of the mixers."""
        return self.mixer_norm(x) if self.pre else x

    def _after(self, x: Tensor, ys: Sequence[Tensor]) -> Tensor:
        """The residual sums and the FFN, given the mixers' outputs."""
        y = ys[0] if len(ys) == 1 else torch.stack(list(ys)).mean(dim=0)
        x = x + self.dropout(y)
        if self.pre:
            return x if self.ffn is None else x + self.dropout(self.ffn(self.ffn_norm(x)))
        x = self.mixer_norm(x)
        return x if self.ffn is None else self.ffn_norm(x + self.dropout(self.ffn(x)))
