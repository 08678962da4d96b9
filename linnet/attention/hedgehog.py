"""Hedgehog (arXiv 2402.04347): exponential features of a learned map per head, trained to imitate softmax.

A_ts = phi(q_t) . phi(k_s), rows divided by their sum, phi(x) = [e^(W x + b), e^(-W x - b)]. Each head has one map for
queries and one for keys. W starts at the identity. A pretrained model learns the maps by attention transfer.
"""

import torch
from torch import Tensor, nn

from linnet.attention.features import LogFeatureCore, LogFeatures
from linnet.config import Count, Settings
from linnet.ops.masks import Layout
from linnet.ops.precision import State, accumulator_precision, keep_precision
from linnet.registry import ATTENTION


class HedgehogOptions(Settings):
    """`features`: rows of W, None for the head width; phi has twice as many entries."""

    features: Count | None = None


@ATTENTION.add("hedgehog")
class HedgehogAttention(LogFeatureCore):
    """Learned exponential features of both signs."""

    what = "learned exponential features, trained to imitate softmax"
    paper = "The Hedgehog & the Porcupine, ICLR 2024, arXiv 2402.04347"
    cost = "N F D"
    Options = HedgehogOptions
    options: HedgehogOptions
    state_types = ("sum",) * 3

    def __init__(self, heads: int, head_dim: int, causal: bool, options: HedgehogOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.F = options.features or head_dim
        for side in ("q", "k"):
            W = torch.eye(self.F, head_dim).repeat(heads, 1, 1)  # (H, F, D)
            W[:, head_dim:] = torch.randn_like(W[:, head_dim:]) * head_dim**-0.5  # rows of zeros would never learn
            setattr(self, f"W_{side}", nn.Parameter(W))
            setattr(self, f"b_{side}", nn.Parameter(torch.zeros(heads, 1, self.F)))

    def log_features(self, q: Tensor, k: Tensor, where: Layout, causal: bool, past: State = ()) -> LogFeatures:
        """(B,H,N,2F) each."""
        wide = accumulator_precision(q.dtype)
        with keep_precision(q.device):
            u, w = (self._mapped(x.to(wide), side) for x, side in ((q, "q"), (k, "k")))
        return LogFeatures(torch.cat([u, -u], dim=-1), torch.cat([w, -w], dim=-1))  # M60

    def _mapped(self, x: Tensor, side: str) -> Tensor:
        """W x + b of the queries or of the keys, (B,H,N,F)."""
        W, b = (self.get_parameter(f"{name}_{side}").to(x.dtype) for name in "Wb")
        return x @ W.mT + b

    @torch.no_grad()
    def choose_scales(self, alpha: Tensor, beta: Tensor) -> None:
        """W = alpha I for the queries and beta I for the keys of each head; alpha and beta are (H,)."""
        eye = torch.eye(self.F, self.head_dim, device=alpha.device)
        for side, scale in (("q", alpha), ("k", beta)):
            self.get_parameter(f"W_{side}")[:, : self.head_dim] = scale[:, None, None] * eye[: self.head_dim]
            self.get_parameter(f"b_{side}").zero_()

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        H, F = self.heads, 2 * self.F
        return [(B, H, F, E), (B, H, F), (B, H, F)]
