"""The 1+elu linear attention of "Transformers are RNNs" (arXiv 2006.16236), with its denominator.

o_t = phi(q_t)^T S_t / max(phi(q_t)^T z_t, 1e-6), phi = 1 + elu, S_t = sum_s phi(k_s) v_s^T, z_t = sum_s phi(k_s).
Positions turn the features of the numerator alone, as in RoFormer (arXiv 2104.09864): products of turned features can
be negative, so that their sum could vanish, while the sum of the features themselves is positive.
"""

import torch
from torch import Tensor

from linnet.attention.base import Core
from linnet.attention.features import FeatureCore, turned_features
from linnet.attention.relative import Positions, RelativePositions, relative_angles_on_cpu
from linnet.attention.rows import Kernel
from linnet.config import Settings
from linnet.ops import reference
from linnet.ops.cpu.decode import Mechanism, Stepper
from linnet.ops.cut import attend_cut_linearly
from linnet.ops.features import EluFeatures
from linnet.ops.masks import Layout
from linnet.ops.precision import EPS, State
from linnet.ops.rules import Features, LinearRule
from linnet.registry import ATTENTION

PLAIN = EluFeatures("1+elu")  # features of the denominator


class EluOptions(Settings):
    """`positions` turns the features; `normalize`: the weights are divided by their sum."""

    positions: Positions = "none"
    normalize: bool = True


@ATTENTION.add("elu")
class EluAttention(FeatureCore):
    """Features 1 + elu, divided by their sum."""

    what = "1+elu features, divided by their sum"
    paper = "Transformers are RNNs, ICML 2020, arXiv 2006.16236"
    cost = "N D^2"
    Options = EluOptions
    options: EluOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: EluOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.positions = RelativePositions(options.positions, head_dim)
        self.normalize, self.counted = options.normalize, options.positions != "none"
        self.wide = self.counted or not self.normalize  # a sum in half precision overflows unless it is divided
        self.state_types = ("sum",) * (1 + self.normalize) + ("count",) * self.counted
        self.split = self.normalize and self.counted  # numerator and denominator have different features
        parts = ("S",) + ("z",) * self.normalize + ("count",) * self.counted
        how = Mechanism("1+elu", parts, angles=tuple(map(type, relative_angles_on_cpu(self))))
        self.stepper = Stepper(how, heads, head_dim)

    def features(self, where: Layout) -> Features:
        if self.relative == "rope2d":
            return turned_features("1+elu", self.positions, where)
        theta, u = self.positions.angles_and_mirror(where.position.device)
        return EluFeatures("1+elu", theta, u, where.position) if self.counted else PLAIN

    def quick_step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State] | None:
        stepper = self.stepper
        return None if stepper is None else stepper.step(q, k, v, state, *relative_angles_on_cpu(self))

    def _sum(
        self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool, state: State | None = None
    ) -> tuple[Tensor, State]:
        if not self.split:
            return super()._sum(q, k, v, where, causal, state)
        q, k, v = self._wide(q, k, v)
        S, z = (None, None) if state is None else (state[:1], (state[1][..., None],))
        o, after = attend_cut_linearly(q, k, v, where, LinearRule(causal, features=self.features(where)), S)
        one = torch.ones_like(v[..., :1])
        total, sums = attend_cut_linearly(q, k, one, where, LinearRule(causal, features=PLAIN), z)
        return o / total.clamp(min=EPS), (*after, *(part.squeeze(3) for part in sums))

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        if not self.split:
            return super().dense(q, k, where, causal)
        q, k = self._wide(q, k)
        phi = self.features(where)
        A = reference.reference_linear_weights(phi(q), phi(k), where, causal)
        total = reference.reference_linear_weights(PLAIN(q), PLAIN(k), where, causal).sum(dim=-1, keepdim=True)
        return A / total.clamp(min=EPS)  # M51

    def kernel(self, q: Tensor, k: Tensor) -> Kernel:
        found = super().kernel(q, k)
        if not self.split:
            return found
        plain_q, plain_k = PLAIN(q.double()), PLAIN(k.double())
        z = plain_k.cumsum(dim=2) if self.causal else plain_k.sum(dim=2, keepdim=True)
        total = (plain_q * z).sum(dim=3, keepdim=True).clamp(min=EPS)
        return Kernel(found.phi_q / total, found.phi_k, divided=False)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        return Core.advance(self, q, k, v, state) if self.split else super().advance(q, k, v, state)
