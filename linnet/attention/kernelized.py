"""Kernelized attention (arXiv 2111.00035): a Gaussian kernel of queries and keys in place of softmax, not normalized.

A_ts = e^(-|q_t - k_s|^2 / 2) with q and k times D^-1/4. Skyformer approximates it.
"""

import torch
from torch import Tensor

from linnet.attention.base import Core
from linnet.ops.block import dense_block
from linnet.ops.masks import Layout, clear_masked, visible_mask
from linnet.ops.precision import accumulator_precision, keep_precision
from linnet.ops.rules import BlockRule
from linnet.registry import ATTENTION

ABSENT = -1e9  # in the exponent of a masked key: e^ABSENT is 0, and so is its gradient


def kernelized_attention(q: Tensor, k: Tensor, v: Tensor, real: Tensor | None = None) -> Tensor:
    """sum_s e^(-|q_t - k_s|^2 / (2 sqrt(D))) v_s, q (B,H,T,D), k (B,H,K,D), v (B,H,K,E) -> (B,H,T,E), without a matrix.

    It is a softmax over one more key, whose exponent is 0, divided by that key's weight; torch's fused kernel computes
    it in linear memory. Two more channels hold the squares: q.k - |k|^2 / 2 - |q|^2 / 2.
    """
    (D, E), one = (q.shape[3], v.shape[3]), torch.ones_like
    half = [x.square().sum(dim=-1, keepdim=True) / -2 for x in (q, k)]
    if real is not None:
        half[1] = half[1].masked_fill(~real[:, None, :, None], ABSENT)
    q = torch.cat([q, one(half[0]), half[0]], dim=-1)
    k = torch.cat([k, half[1], one(half[1])], dim=-1)  # (B, H, K, D + 2)
    last = v.new_zeros(*v.shape[:2], 1, max(D + 2, E + 1))
    last[..., -1] = 1
    v = torch.cat([torch.nn.functional.pad(v, (0, last.shape[3] - E)), last], dim=2)
    o = dense_block(q, torch.nn.functional.pad(k, (0, 0, 0, 1)), v, None, BlockRule("softmax", False, D**-0.5))
    return o[..., :E] / o[..., -1:]


def kernelized_weights(q: Tensor, k: Tensor) -> Tensor:
    """e^(-|q_t - k_s|^2 / (2 sqrt(D))), (..., T, K), from the distances themselves."""
    distance = torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.exp(distance.square() * (-(q.shape[-1] ** -0.5) / 2))  # M23


@ATTENTION.add("kernelized")
class KernelizedAttention(Core):
    """A Gaussian kernel, without a normalizer."""

    what = "Gaussian kernel of queries and keys, not normalized"
    paper = "Skyformer: Remodel Self-Attention with Gaussian Kernel and Nystrom Method, NeurIPS 2021, arXiv 2111.00035"
    cost = "N^2 D"
    causal_form = False
    recurrent = False
    packed = False
    cross = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        wide = accumulator_precision(q.dtype)
        k, v = clear_masked(where.real, k, v)
        with keep_precision(q.device):
            return kernelized_attention(q.to(wide), k.to(wide), v.to(wide), where.real)

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        wide = accumulator_precision(q.dtype)
        return torch.where(visible_mask(where, False), kernelized_weights(q.to(wide), k.to(wide)), 0)

    def rows(self, q: Tensor, k: Tensor, start: int, stop: int) -> Tensor:
        wide = accumulator_precision(q.dtype)
        return kernelized_weights(q[:, :, start:stop].to(wide), k.to(wide))
