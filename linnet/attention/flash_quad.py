"""FLASH-quad, the gated attention unit of "Transformer Quality in Linear Time" (arXiv 2202.10447), in quadratic form.

One head, gated by a second branch, so that the unit does the work of attention and FFN together:
y = (U * A V) W_o with U = silu(x W_u), V = silu(x W_v), A = relu(q k^T / n + b)^2, q and k cheap maps of one narrow Z.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import silu

from linnet.attention.base import Core, Mixer
from linnet.attention.rows import visible_past_of_rows
from linnet.config import Settings
from linnet.ops.glu import silu_gate
from linnet.ops.masks import Layout, clear_masked, visible_mask
from linnet.ops.positions import position_turns, rotary_position_angles, rotate_by_position, turn_by_position
from linnet.ops.precision import accumulator_precision, keep_precision
from linnet.ops.squared_relu import squared_relu_attention
from linnet.registry import ATTENTION

Width = Annotated[int, Field(ge=1, le=2**20)]


class GatedOptions(Settings):
    """`key_width` is s of the paper, `value_width` e (None: twice the width); distances below `reach` learn a bias."""

    key_width: Annotated[int, Field(ge=2, le=2**20, multiple_of=2)] = 128
    value_width: Width | None = None
    reach: Width = 512


class DistanceBias(nn.Module):
    """The bias of a score by its distance t - s: learned below `reach`, and a rotary term at any distance."""

    def __init__(self, reach: int, D: int) -> None:
        super().__init__()
        self.reach = reach
        self.table = nn.Parameter(0.02 * torch.randn(2 * reach - 1))
        self.a = nn.Parameter(0.02 * torch.randn(D))
        self.b = nn.Parameter(0.02 * torch.randn(D))

    def forward(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """(n,) biases of (n,) whole distances."""
        # In float64, so that a distance has the same bias in rows of any length: scores are squared later.
        a = self.a.double().expand(1, 1, len(distance), -1)
        turned = rotate_by_position(a, rotary_position_angles(len(self.a), a.device), distance)[0, 0]  # (n, D)
        entry = self.table.double()[(distance + self.reach - 1).clamp(0, 2 * self.reach - 2)]
        return (torch.where(distance.abs() < self.reach, entry, 0) + turned @ self.b.double()).to(dtype)  # M25

    def matrix(self, N: int, dtype: torch.dtype, start: int = 0, stop: int | None = None) -> Tensor:
        """(N, N), or rows of it: the bias of distance t - s in row t and column s."""
        falling = torch.arange(N - 1, -N, -1, device=self.a.device)
        return self(falling, dtype).unfold(0, N, 1)[N - (stop or N) : N - start].flip(0)


class GatedMixer(Mixer):
    """The gated unit around its core: two wide branches of x, one of them a gate, and a narrow one for the scores."""

    def __init__(self, core: Core, width: int, value_width: int) -> None:
        nn.Module.__init__(self)  # its projections differ from those of Mixer
        self.core, self.width = core, width
        self.value_width = value_width
        self.enter = nn.Linear(width, value_width + core.head_dim)  # V and Z
        self.gate = nn.Linear(width, value_width)  # U
        self.out = nn.Linear(value_width, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier uniform for each of the four projections, biases 0."""
        for weight in (*self.enter.weight.split(self._parts), self.gate.weight, self.out.weight):
            nn.init.xavier_uniform_(weight)
        for layer in (self.enter, self.gate, self.out):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    @property
    def _parts(self) -> list[int]:
        return [self.value_width, self.core.head_dim]

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Z twice, as query and as key (B,1,N,s), and V (B,1,N,e)."""
        v, z = silu(self.enter(x)).unsqueeze(1).split(self._parts, dim=3)
        return z, z, v

    def _merge(self, o: Tensor, x: Tensor) -> Tensor:
        return self.out(silu_gate(self.gate(x), o.squeeze(1)))  # M26


class GatedUnit(Core):
    """What the two gated units share: one head, maps gamma * Z + beta, rotary positions, biases, the mixer."""

    paper = "Transformer Quality in Linear Time, ICML 2022, arXiv 2202.10447"
    packed = False
    core_form = False
    maps = 2  # maps of Z: queries first, then keys

    def __init__(self, heads: int, head_dim: int, causal: bool, options: GatedOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.gamma = nn.Parameter(0.02 * torch.randn(self.maps, head_dim))
        self.beta = nn.Parameter(torch.zeros(self.maps, head_dim))
        self.bias = DistanceBias(options.reach, head_dim)

    @classmethod
    def mixer(cls, width: int, heads: int, causal: bool, options: Settings) -> Mixer:
        assert isinstance(options, GatedOptions)
        core = cls(1, options.key_width, causal, options)
        return GatedMixer(core, width, options.value_width or 2 * width)

    def features(self, q: Tensor, k: Tensor, position: Tensor) -> list[Tensor]:
        """The rotated maps gamma * z + beta in float32 or wider: the first half of q, the second of k."""
        wide = accumulator_precision(q.dtype)
        gamma, beta = self.gamma.to(wide), self.beta.to(wide)
        turns, half = position_turns(rotary_position_angles(self.head_dim, q.device), position), self.maps // 2
        maps = [
            turn_by_position(torch.addcmul(b[:, None], z.to(wide), g[:, None]), turns)  # (B, maps/2, N, s)
            for z, g, b in zip((q, k), gamma.split(half), beta.split(half), strict=True)
        ]
        return [part for both in maps for part in both.split(1, dim=1)]


@ATTENTION.add("flash_quad")
class FlashQuadAttention(GatedUnit):
    """Squared ReLU of scores divided by the number of visible tokens."""

    what = "gated unit with squared ReLU scores over all keys, mixer only"
    cost = "N^2 (s + e)"
    recurrent = False
    Options = GatedOptions
    options: GatedOptions

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        N, real = q.shape[2], where.reals(len(q))
        k, v = clear_masked(where.real, k, v)
        with keep_precision(v.device):
            v = v.to(accumulator_precision(v.dtype))
            q, k = self.features(q, k, where.position)
            seen = real.cumsum(dim=1) if causal else real.sum(dim=1, keepdim=True)  # real tokens that a query sees
            q = q / seen.clamp(min=1)[:, None, :, None]
            bias = self.bias(torch.arange(N - 1, -N, -1, device=q.device), v.dtype)
            return squared_relu_attention(q.squeeze(1), k.squeeze(1), v.squeeze(1), bias, causal).unsqueeze(1)

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        q, k = self.features(q, k, where.position)
        see = visible_mask(where, causal)
        n = see.sum(dim=-1, keepdim=True).clamp(min=1)  # real tokens that a query sees
        scores = q @ k.mT / n + self.bias.matrix(q.shape[2], q.dtype)
        return torch.where(see, scores, 0).relu().square()  # M27

    def rows(self, q: Tensor, k: Tensor, start: int, stop: int) -> Tensor:
        N = q.shape[2]
        q, k = self.features(q, k, torch.arange(N, device=q.device))
        see = (
            visible_past_of_rows(start, stop, N, q.device)
            if self.causal
            else torch.ones(1, N, dtype=torch.bool, device=q.device)
        )
        n = see.sum(dim=-1, keepdim=True)
        scores = q[:, :, start:stop] @ k.mT / n + self.bias.matrix(N, q.dtype, start, stop)
        return torch.where(see, scores, 0).relu().square()  # M27
