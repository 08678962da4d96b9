"""NormAttention of TransNormer (arXiv 2210.10340): linear attention without a denominator, then a norm.

T_t = sum_s (q_t . k_s) v_s with q = R_t H phi(q), k = R_s H phi(k); O = SRMS(T) over the merged heads. Division by the
sum of the scores makes the gradients of linear attention unbounded; the norm bounds them.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from linnet.attention.features import FeatureCore, turned_features
from linnet.attention.relative import Positions, RelativePositions, relative_angles_on_cpu
from linnet.config import Settings
from linnet.errors import InputError
from linnet.ops.cpu.decode import Mechanism, Stepper
from linnet.ops.features import EluFeatures
from linnet.ops.masks import Layout
from linnet.ops.precision import State, accumulator_precision
from linnet.ops.rms import rms, srms
from linnet.ops.rules import Features
from linnet.registry import ATTENTION

EPSILONS = {"srms": 1e-8, "eq34": 1e-8, "rms": 1e-6, "layer": 1e-5}  # where `eps` is None


class NormOptions(Settings):
    """`phi`: T2 of the paper uses 1+elu, T1 plain elu. `eps` is that of `xnorm`; None is its usual one."""

    phi: Literal["1+elu", "elu"] = "1+elu"
    positions: Positions = "lrpe"
    xnorm: Literal["srms", "eq34", "rms", "layer", "none"] = "srms"
    eps: Annotated[float, Field(gt=0, le=1)] | None = None

    @field_validator("eps")
    @classmethod
    def _has_eps(cls, eps: float | None, info: ValidationInfo) -> float | None:
        if eps is not None and info.data.get("xnorm") == "none":
            raise ValueError("xnorm = 'none' has no eps")
        return eps


class _MergedNorm(nn.Module):
    """A norm of (B,H,N,E) over the merged width H*E of each token."""

    def __init__(self, kind: str, width: int, eps: float | None = None) -> None:
        super().__init__()
        self.kind, self.width = kind, width
        self.eps = EPSILONS.get(kind, 0.0) if eps is None else eps
        if kind in ("rms", "layer"):
            self.gain = nn.Parameter(torch.ones(width))
        if kind == "layer":
            self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, o: Tensor) -> Tensor:
        if self.kind == "none":
            return o
        if self.kind == "srms":
            return srms(o, dim=(1, 3), eps=self.eps)  # M2
        if self.kind == "eq34":
            wide = o.to(accumulator_precision(o.dtype))
            return (wide * (wide.square().mean(dim=(1, 3), keepdim=True) + self.eps).rsqrt()).to(o.dtype)  # M52
        merged = o.transpose(1, 2).flatten(2)  # (B, N, H*E)
        if merged.shape[2] != self.width:
            count = merged.shape[2]
            raise InputError(f"v has {count} entries per token: xnorm={self.kind!r} was built for {self.width}")
        if self.kind == "rms":
            merged = rms(merged, self.gain, self.eps)
        else:
            gain, bias = self.gain.to(merged.dtype), self.bias.to(merged.dtype)
            merged = layer_norm(merged, (self.width,), gain, bias, self.eps)
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
        self.xnorm = _MergedNorm(options.xnorm, heads * head_dim, options.eps)
        within = options.xnorm == "srms" and self.xnorm.eps == EPSILONS["srms"]  # the kernel has this norm
        self.norms_after = not within and options.xnorm != "none"
        if options.xnorm in ("srms", "eq34", "none"):
            angles = tuple(map(type, relative_angles_on_cpu(self)))
            self.stepper = Stepper(Mechanism(options.phi, ("S", "count"), within, angles=angles), heads, head_dim)

    def features(self, where: Layout) -> Features:
        if self.relative == "rope2d":
            return turned_features(self.options.phi, self.positions, where)
        theta, u = self.positions.angles_and_mirror(where.position.device)
        return EluFeatures(self.options.phi, theta, u, where.position)

    def quick_step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State] | None:
        stepper = self.stepper
        found = None if stepper is None else stepper.step(q, k, v, state, *relative_angles_on_cpu(self))
        return (self.finish(found[0]), found[1]) if found is not None and self.norms_after else found

    def finish(self, o: Tensor) -> Tensor:
        return self.xnorm(o)
