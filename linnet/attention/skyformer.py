"""Skyformer (arXiv 2111.00035): the Gaussian kernel of `kernelized` by the Nystrom method, in linear time.

A = C_q D^-1/2 Z D^-1/2 C_k^T with C_q = kappa(Q, L), C_k = kappa(K, L), G = kappa(L, L) + ridge I, D its row sums and
Z ~ (D^-1/2 G D^-1/2)^-1. The landmarks L are sampled queries and keys. A row in which each token would be a landmark is
computed exactly.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from linnet.attention.base import Core
from linnet.attention.kernelized import kernelized_attention, kernelized_weights
from linnet.config import Count, Settings
from linnet.ops.block import pick_block_tokens
from linnet.ops.masks import Layout, clear_masked, visible_mask
from linnet.ops.precision import accumulator_precision, keep_precision
from linnet.ops.pseudo_inverse import pseudo_inverse
from linnet.registry import ATTENTION


class SkyformerOptions(Settings):
    """`landmarks`: m, half of them queries, half keys; `ridge`: added to the diagonal of G; `steps`: iterations."""

    landmarks: Annotated[int, Field(ge=2, le=10**6, multiple_of=2)] = 128
    ridge: Annotated[float, Field(ge=0, le=1)] = 0.1
    steps: Count = 6


def _scramble(x: Tensor) -> Tensor:
    """A fixed permutation of the 64-bit integers that looks random."""
    for odd in (0x2545F4914F6CDD1D, 0x369DEA0F31A53F85):
        x = (x ^ (x >> 31)) * odd
    return x ^ (x >> 31)


def draw_skyformer_landmarks(seed: Tensor, real: Tensor, count: int) -> Tensor:
    """Indices (B,count) of real tokens without repetition; if a row has fewer, masked ones come last.

    The choice depends only on the seed and on each token's rank among the real tokens, so padding changes nothing.
    """
    lots = _scramble(_scramble(seed) + real.cumsum(dim=1))
    lots = lots.masked_fill(~real, torch.iinfo(torch.int64).max)
    return lots.topk(count, dim=1, largest=False).indices


@ATTENTION.add("skyformer")
class SkyformerAttention(Core):
    """The Gaussian kernel through landmarks and an iterative inverse."""

    what = "the kernel of kernelized, rebuilt from landmarks by the Nystrom method"
    paper = "Skyformer: Remodel Self-Attention with Gaussian Kernel and Nystrom Method, NeurIPS 2021, arXiv 2111.00035"
    cost = "N m D"
    causal_form = False
    recurrent = False
    packed = False
    Options = SkyformerOptions
    options: SkyformerOptions
    seed: Tensor

    def __init__(self, heads: int, head_dim: int, causal: bool, options: SkyformerOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.register_buffer("seed", torch.randint(2**62, (2,)))

    def _inverse(self, L: Tensor) -> Tensor:
        """D^-1/2 Z D^-1/2 (B,H,m,m) of the landmarks L (B,H,m,D)."""
        G = kernelized_weights(L, L) + self.options.ridge * torch.eye(L.shape[2], dtype=L.dtype, device=L.device)
        scale = G.sum(dim=-1, keepdim=True).rsqrt()  # (B, H, m, 1)
        return scale * pseudo_inverse(scale * G * scale.mT, self.options.steps) * scale.mT

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        (B, _, N, _), half, wide = q.shape, self.options.landmarks // 2, accumulator_precision(q.dtype)
        real = where.real
        q, k, v = q.to(wide), k.to(wide), v.to(wide)
        known, k, v = clear_masked(real, q, k, v)
        with keep_precision(q.device):
            if half >= N:
                return kernelized_attention(q, k, v, real)
            some = torch.ones(1, N, dtype=torch.bool, device=q.device) if real is None else real
            of_q, of_k = (draw_skyformer_landmarks(seed, some, half).expand(B, -1) for seed in self.seed)
            L = torch.cat([pick_block_tokens(known, of_q), pick_block_tokens(k, of_k)], dim=2)  # (B, H, m, D)
            values = self._inverse(L) @ kernelized_attention(L, k, v, real)  # (B, H, m, E)
            if real is not None:  # each token of a short row is a landmark, with its exact value
                short = (real.sum(dim=1) <= half)[:, None, None, None]
                own = pick_block_tokens(v, of_k)  # 0 where no token exists
                values = torch.where(short, torch.cat([torch.zeros_like(own), own], dim=2), values)
            return kernelized_attention(q, L, values)

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        (B, _, N, _), half, wide = q.shape, self.options.landmarks // 2, accumulator_precision(q.dtype)
        q, k = q.to(wide), k.to(wide)
        exact = torch.where(visible_mask(where, False), kernelized_weights(q, k), 0)  # M23
        if half >= N:
            return exact
        real = where.reals(B)
        known, k = clear_masked(real, q, k)
        drawn = [
            pick_block_tokens(x, draw_skyformer_landmarks(seed, real, half))
            for x, seed in zip((known, k), self.seed, strict=True)
        ]
        L = torch.cat(drawn, dim=2)
        C_q, C_k = kernelized_weights(q, L), kernelized_weights(k, L) * real[:, None, :, None]
        A = C_q @ self._inverse(L) @ C_k.mT  # M24
        return torch.where(real.sum(dim=1)[:, None, None, None] <= half, exact, A)
