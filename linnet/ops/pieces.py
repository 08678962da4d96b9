"""Softmax attention of units of queries over a few pieces of the keys, on the CPU kernels.

A piece is a run of keys: a window, a block anywhere, a row of landmarks. The kernels keep the scores of a few queries
in cache and store neither gathered keys nor scores. Where they cannot run, a mechanism uses its own PyTorch form.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from linnet.ops.backend import cpu_backend_serves
from linnet.ops.block import dense_block
from linnet.ops.memory import Maybe
from linnet.ops.rules import BlockRule


class Pieces(NamedTuple):
    """The keys of each unit of `unit` queries.

    `spans` (B or 1, H or 1, units, pieces, 2) holds the first key of each piece and how many it has, `widest` keys
    together at most. `band` (N,2) holds the first and, excluded, the last key of piece 0 that each query sees.
    """

    unit: int
    spans: Tensor
    widest: int
    band: Maybe = None


def piece_attention(q: Tensor, k: Tensor, v: Tensor, real: Maybe, pieces: Pieces, scale: float) -> Tensor | None:
    """o (B,H,N,E) of q (B,H,N,D) over k, v (B,H,K,.), of which `real` (B,K) are keys; None without CPU kernels."""
    if not cpu_backend_serves(q, v):
        return None
    from linnet.ops.cpu.pieces import attend_pieces_cpu

    return attend_pieces_cpu(q, k, v, real, pieces, scale)


def shared_piece_attention(q: Tensor, k: Tensor, v: Tensor, real: Maybe, scale: float) -> Tensor:
    """Softmax attention of q (B,H,N,D) over all keys (B,H,K,D), of which `real` (B,K) count; landmarks use it."""
    N, K = q.shape[2], k.shape[2]
    spans = torch.tensor([0, K], device=q.device).view(1, 1, 1, 1, 2)
    o = piece_attention(q, k, v, real, Pieces(N, spans, K), scale)
    if o is not None:
        return o
    see = None if real is None else real[:, None, None].expand(-1, 1, N, -1)
    return dense_block(q, k, v, see, BlockRule("softmax", False, scale))
