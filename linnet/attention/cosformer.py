"""cosFormer (arXiv 2202.08791): ReLU features, reweighted by the cosine of the distance.

A_ts = relu(q_t) . relu(k_s) cos(pi (t - s) / 2M), rows divided by their sum. The cosine of a difference is a sum of two
products, so features of width 2D express it: [relu(x) cos(pi t / 2M), relu(x) sin(pi t / 2M)].
"""

import math

import torch
from torch import Tensor

from linnet.attention.base import Core
from linnet.attention.features import FeatureCore
from linnet.config import Count, Settings
from linnet.ops.cut import CutLayout
from linnet.ops.masks import Layout, check_masked_length, visible_mask
from linnet.ops.precision import EPS, accumulator_precision
from linnet.ops.rules import Features
from linnet.registry import ATTENTION


class CosformerOptions(Settings):
    """`max_length`: M, the length of the longest sequence; for larger distances the cosine would be negative."""

    max_length: Count = 4096


@ATTENTION.add("cosformer")
class CosformerAttention(FeatureCore):
    """ReLU features with a cosine that favors near tokens."""

    what = "ReLU features, weighted by the cosine of the distance"
    paper = "cosFormer: Rethinking Softmax in Attention, ICLR 2022, arXiv 2202.08791"
    cost = "N D^2"
    any_length = False
    cross = False  # the cosine depends on a distance inside one sequence
    counted = True
    wide = True
    Options = CosformerOptions
    options: CosformerOptions

    @property
    def feature_width(self) -> int:
        return 2 * self.head_dim

    def _check_length(self, where: Layout) -> None:
        """Raise if a position is beyond `max_length`."""
        length = where.length if where.run is None else where.position + 1
        if isinstance(where, CutLayout):
            length = where.longest  # the same on all ranks, which then all stop
        check_masked_length(length, self.options.max_length, self.name)

    def features(self, where: Layout) -> Features:
        self._check_length(where)
        angle = where.position.to(torch.float64) * (math.pi / (2 * self.options.max_length))
        angle = angle[..., None] if angle.dim() == 1 else angle[:, None, :, None]  # (N, 1) or (B, 1, N, 1)

        def phi(x: Tensor) -> Tensor:
            turn, x = angle.to(x.dtype), x.relu()
            return torch.cat([x * turn.cos(), x * turn.sin()], dim=-1)

        return phi

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        """From the distances themselves, not from the features."""
        self._check_length(where)
        t, wide = where.position.expand(q.shape[0], -1), accumulator_precision(q.dtype)
        gap = (t[:, None, :, None] - t[:, None, None, :]).to(wide)  # (B, 1, N, N)
        near = torch.cos(gap * (math.pi / (2 * self.options.max_length)))
        A = torch.where(visible_mask(where, causal), q.to(wide).relu() @ k.to(wide).relu().mT * near, 0)
        return A / A.sum(dim=-1, keepdim=True).clamp(min=EPS)  # M18

    advance = Core.advance  # features of width 2D: a kernel on one token is faster than separate operations
