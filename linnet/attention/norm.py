"""NormAttention of TransNormer (arXiv 2210.10340): linear attention without a denominator, then a norm.

T_t = sum_s (q_t . k_s) v_s with q = R_t H phi(q), k = R_s H phi(k); O = SRMS(T) over the merged heads. Dividing by the
sum of the scores is what makes the gradients of linear attention unbounded; the norm bounds them.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from linnet.attention.base import Core
from linnet.attention.relative import Positions, RelativePositions, kept_angles, positions_of
from linnet.attention.rows import Kernel
from linnet.config import Settings
from linnet.errors import InputError
from linnet.ops import reference
from linnet.ops.cpu.decode import Mechanism, Stepper
from linnet.ops.features import Features, feature_attention
from linnet.ops.masks import layout
from linnet.ops.precision import State, accumulator
from linnet.ops.rms import rms, srms
from linnet.registry import ATTENTION


class NormOptions(Settings):
    """`phi`: T2 of the paper uses 1+elu, T1 plain elu."""

    phi: Literal["1+elu", "elu"] = "1+elu"
    positions: Positions = "lrpe"
    xnorm: Literal["srms", "rms", "layer", "none"] = "srms"


class MergedNorm(nn.Module):
    """A norm of (B,H,N,E) over the merged width H*E of each token."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind, self.width = kind, width
        if kind in ("rms", "layer"):
            self.gain = nn.Parameter(torch.ones(width))
        if kind == "layer":
            self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, o: Tensor) -> Tensor:
        if self.kind == "none":
            return o
        if self.kind == "srms":
            return srms(o, dim=(1, 3))  # M2
        merged = o.transpose(1, 2).flatten(2)  # (B, N, H*E)
        if merged.shape[2] != self.width:
            raise InputError(f"v has {merged.shape[2]} entries a token: xnorm={self.kind!r} was built for {self.width}")
        if self.kind == "rms":
            merged = rms(merged, self.gain)
        else:
            merged = layer_norm(merged, (self.width,), self.gain.to(merged.dtype), self.bias.to(merged.dtype))
        return merged.unflatten(2, (o.shape[1], -1)).transpose(1, 2)


def _wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """In float32 at least: the sums of half precision overflow before the norm."""
    return tuple(x.to(accumulator(x.dtype)) for x in tensors)


@ATTENTION.add("norm")
class NormAttention(Core):
    """Unscaled linear attention followed by a norm over the merged heads."""

    what = "linear attention without a denominator, then a norm over the merged width"
    paper = "The Devil in Linear Transformer, EMNLP 2022, arXiv 2210.10340"
    cost = "N D^2"
    state_types = ("sum", "count")
    Options = NormOptions
    options: NormOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: NormOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.positions = RelativePositions(options.positions, head_dim)
        self.xnorm = MergedNorm(options.xnorm, heads * head_dim)
        angles = tuple(map(type, kept_angles(self.positions)))
        how = Mechanism(options.phi, ("S", "count"), options.xnorm == "srms", angles=angles)
        self.stepper = Stepper(how, heads, head_dim) if options.xnorm in ("srms", "none") else None

    def _features(self, x: Tensor) -> Features:
        """phi, then the rotation, for tensors on the device of x."""
        return Features(self.options.phi, *self.positions.angles_and_mirror(x.device))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, key_mask: Tensor | None, segments: Tensor | None
    ) -> Tensor:
        position, _ = positions_of(q, key_mask, segments)
        q, k, v = _wide(q, k, v)
        return feature_attention(q, k, v, self._features(q), position, causal, False, key_mask, segments)[0]

    def dense(self, q: Tensor, k: Tensor, causal: bool, key_mask: Tensor | None, segments: Tensor | None) -> Tensor:
        where, features = layout(q.shape[0], q.shape[2], key_mask, segments, q.device), self._features(q)
        phi_q, phi_k = (features(x, where.position) for x in _wide(q, k))
        return reference.linear_weights(phi_q, phi_k, where, causal)  # M1

    def kernel(self, q: Tensor, k: Tensor) -> Kernel:
        position, features = torch.arange(q.shape[2], device=q.device), self._features(q)
        return Kernel(features(q.double(), position), features(k.double(), position), divided=False)

    def finish(self, o: Tensor) -> Tensor:
        return self.xnorm(o)

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: State | None
    ) -> tuple[Tensor, State]:
        S, start = state if state is not None else (None, None)
        position, length = positions_of(q, key_mask, None, start)
        q, k, v = _wide(q, k, v)
        before = None if S is None else (S,)
        o, (S,) = feature_attention(q, k, v, self._features(q), position, key_mask=key_mask, state=before)
        return o, (S, length)

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        return [(B, self.heads, self.head_dim, E), (B,)]

    def quick_step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State] | None:
        stepper, positions = self.stepper, self._modules["positions"]
        return None if stepper is None else stepper.step(q, k, v, state, *kept_angles(positions))  # type: ignore[arg-type]

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        (S, start), features = state, self._features(q)
        phi_q, phi_k = (features(x, start[:, None]) for x in _wide(q, k))
        S = torch.addcmul(S, phi_k.mT, v.to(S.dtype))  # (B, H, D, E)  M8
        return phi_q @ S, (S, start + 1)
