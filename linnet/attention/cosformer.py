"""cosFormer (arXiv 2202.08791): ReLU features, reweighted by the cosine of the distance.

A_ts = relu(q_t) . relu(k_s) cos(pi (t - s) / 2M), rows divided by their sum. The cosine of a difference is a sum of two
products, so that features of width 2D carry it: [relu(x) cos(pi t / 2M), relu(x) sin(pi t / 2M)].
"""

import math

import torch
from torch import Tensor

from linnet.attention.base import Core
from linnet.attention.relative import positions_of
from linnet.attention.rows import Kernel
from linnet.config import Count, Settings
from linnet.ops import linear_attention
from linnet.ops.masks import Layout, check_length, layout, visible
from linnet.ops.precision import EPS, State, accumulator
from linnet.registry import ATTENTION


class CosformerOptions(Settings):
    """`max_length`: M, the tokens of the longest sequence; farther apart the cosine would be negative."""

    max_length: Count = 4096


@ATTENTION.add("cosformer")
class CosformerAttention(Core):
    """ReLU features with a cosine that favors near tokens."""

    what = "ReLU features, weighted by the cosine of the distance"
    paper = "cosFormer: Rethinking Softmax in Attention, ICLR 2022, arXiv 2202.08791"
    cost = "N D^2"
    any_length = False
    state_types = ("sum", "sum", "count")
    Options = CosformerOptions
    options: CosformerOptions

    def _check_length(self, where: Layout) -> None:
        """The one-line error where a position is beyond `max_length`."""
        if where.position.shape[-1] > self.options.max_length:  # otherwise none can be
            check_length(where.position + 1, self.options.max_length, self.name)

    def _features(self, x: Tensor, position: Tensor) -> Tensor:
        """(B,H,N,2D) of x (B,H,N,D) at `position` (N,) or (B,N), in float32 or wider."""
        angle = (position.to(torch.float64) * (math.pi / (2 * self.options.max_length))).to(accumulator(x.dtype))
        angle = angle[..., None] if angle.dim() == 1 else angle[:, None, :, None]
        x = x.to(angle.dtype).relu()
        return torch.cat([x * angle.cos(), x * angle.sin()], dim=-1)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, key_mask: Tensor | None, segments: Tensor | None
    ) -> Tensor:
        where = layout(q.shape[0], q.shape[2], key_mask, segments, q.device)
        self._check_length(where)
        phi_q, phi_k = self._features(q, where.position), self._features(k, where.position)
        v = v.to(phi_q.dtype)
        return linear_attention(phi_q, phi_k, v, causal, normalize=True, key_mask=key_mask, segments=segments)

    def dense(self, q: Tensor, k: Tensor, causal: bool, key_mask: Tensor | None, segments: Tensor | None) -> Tensor:
        where = layout(q.shape[0], q.shape[2], key_mask, segments, q.device)
        self._check_length(where)
        t, wide = where.position.expand(q.shape[0], -1), accumulator(q.dtype)
        gap = (t[:, None, :, None] - t[:, None, None, :]).to(wide)  # (B, 1, N, N)
        near = torch.cos(gap * (math.pi / (2 * self.options.max_length)))
        A = torch.where(visible(where, causal), q.to(wide).relu() @ k.to(wide).relu().mT * near, 0)
        return A / A.sum(dim=-1, keepdim=True).clamp(min=EPS)  # M18

    def kernel(self, q: Tensor, k: Tensor) -> Kernel:
        position = torch.arange(q.shape[2], device=q.device)
        return Kernel(self._features(q.double(), position), self._features(k.double(), position), divided=True)

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, state: State | None
    ) -> tuple[Tensor, State]:
        """The state: S and z of `linear_attention`, and the number of positions (B,)."""
        before, start = (None, None) if state is None else (state[:2], state[2])
        position, length = positions_of(q, key_mask, None, start)
        check_length(length, self.options.max_length, self.name)
        phi_q, phi_k = self._features(q, position), self._features(k, position)
        v = v.to(phi_q.dtype)
        o, after = linear_attention(
            phi_q, phi_k, v, normalize=True, key_mask=key_mask, state=before, return_state=True
        )
        return o, (*after, length)

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        H, D = self.heads, self.head_dim
        return [(B, H, 2 * D, E), (B, H, 2 * D), (B,)]
