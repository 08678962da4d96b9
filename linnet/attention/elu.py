"""The 1+elu linear attention of "Transformers are RNNs" (arXiv 2006.16236), with its denominator.

o_t = phi(q_t)^T S_t / max(phi(q_t)^T z_t, 1e-6), phi = 1 + elu, S_t = sum_s phi(k_s) v_s^T, z_t = sum_s phi(k_s).
"""

import torch
from torch import Tensor

from linnet.attention.base import Core
from linnet.attention.rows import Kernel
from linnet.config import Settings
from linnet.ops import reference
from linnet.ops.cpu.decode import Mechanism, Stepper
from linnet.ops.features import Features, feature_attention
from linnet.ops.features import one_plus_elu as phi
from linnet.ops.masks import layout
from linnet.ops.precision import EPS, State
from linnet.registry import ATTENTION

FEATURES = Features("1+elu")


@ATTENTION.add("elu")
class EluAttention(Core):
    """Features 1 + elu, divided by their sum."""

    what = "1+elu features, divided by their sum"
    paper = "Transformers are RNNs, ICML 2020, arXiv 2006.16236"
    cost = "N D^2"
    state_types = ("sum", "sum")

    def __init__(self, heads: int, head_dim: int, causal: bool, options: Settings) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.stepper = Stepper(Mechanism("1+elu", ("S", "z")), heads, head_dim)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, key_mask: Tensor | None, segments: Tensor | None
    ) -> Tensor:
        return feature_attention(q, k, v, FEATURES, None, causal, True, key_mask, segments)[0]

    def dense(self, q: Tensor, k: Tensor, causal: bool, key_mask: Tensor | None, segments: Tensor | None) -> Tensor:
        where = layout(q.shape[0], q.shape[2], key_mask, segments, q.device)
        A = reference.linear_weights(phi(q), phi(k), where, causal)
        return A / A.sum(dim=-1, keepdim=True).clamp(min=EPS)  # M10

    def kernel(self, q: Tensor, k: Tensor) -> Kernel:
        return Kernel(phi(q.double()), phi(k.double()), divided=True)

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: State | None
    ) -> tuple[Tensor, State]:
        return feature_attention(q, k, v, FEATURES, normalize=True, key_mask=key_mask, state=state)

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        return [(B, self.heads, self.head_dim, E), (B, self.heads, self.head_dim)]

    def quick_step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State] | None:
        return self.stepper.step(q, k, v, state)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        S, z = state
        a, b = phi(q).to(S.dtype), phi(k).to(S.dtype)
        S = torch.addcmul(S, b.mT, v.to(S.dtype))  # (B, H, D, E)
        z = z + b.squeeze(2)
        o = a @ S / (a @ z[..., None]).clamp(min=EPS)
        return o, (S, z)
