"""NormAttention of TransNormer (arXiv 2210.10340): linear attention without a denominator, then a norm.

T_t = sum_s (q_t . k_s) v_s with q = R_t H phi(q), k = R_s H phi(k); O = SRMS(T) over the merged heads. Division by the
sum of the scores makes the gradients of linear attention unbounded; the norm bounds them.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from linnet.attention.features import FeatureCore
from linnet.attention.relative import Positions, RelativePositions, kept_angles
from linnet.config import Settings
from linnet.errors import InputError
from linnet.ops.cpu.decode import Mechanism, Stepper
from linnet.ops.features import EluFeatures
from linnet.ops.masks import Layout
from linnet.ops.precision import State
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
            count = merged.shape[2]
            raise InputError(f"v has {count} entries per token: xnorm={self.kind!r} was built for {self.width}")
        if self.kind == "rms":
            merged = rms(merged, self.gain)
        else:
            merged = layer_norm(merged, (self.width,), self.gain.to(merged.dtype), self.bias.to(merged.dtype))
        return merged.unflatten(2, (o.shape[1], -1)).transpose(1, 2)


@ATTENTION.add("norm")
class NormAttention(FeatureCore):
    """Unscaled linear attention followed by a norm over the merged heads."""

    what = "linear attention without a denominator, then a norm over the merged width"
    paper = "The Devil in Linear Transformer, EMNLP 2022, arXiv 2210.10340"
    cost = "N D^2"
    normalize = False
    counted = True
    wide = True  # the sums of half precision overflow before the norm
    Options = NormOptions
    options: NormOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: NormOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.positions = RelativePositions(options.positions, head_dim)
        self.xnorm = MergedNorm(options.xnorm, heads * head_dim)
        if options.xnorm in ("srms", "none"):
            angles = tuple(map(type, kept_angles(self)))
            how = Mechanism(options.phi, ("S", "count"), options.xnorm == "srms", angles=angles)
            self.stepper = Stepper(how, heads, head_dim)

    def features(self, where: Layout) -> EluFeatures:
        theta, u = self.positions.angles_and_mirror(where.position.device)
        return EluFeatures(self.options.phi, theta, u, where.position)

    def quick_step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State] | None:
        stepper = self.stepper
        return None if stepper is None else stepper.step(q, k, v, state, *kept_angles(self))

    def finish(self, o: Tensor) -> Tensor:
        return self.xnorm(o)
