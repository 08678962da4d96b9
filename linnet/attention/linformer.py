"""Linformer (arXiv 2006.04768): softmax over k learned mixtures of keys, with the same mixtures of values.

O = softmax(Q (E K)^T / sqrt(D)) E V with E (k, N) learned for each head. Its columns are positions, counted from the
first real token. It mixes all positions, so there is no causal form.
"""

import torch
from torch import Tensor, nn

from linnet.attention.base import Core
from linnet.config import Count, Settings
from linnet.ops.block import block_turns, pick_block_tokens
from linnet.ops.masks import Layout, check_masked_length, clear_masked
from linnet.ops.pieces import shared_piece_attention
from linnet.ops.precision import accumulator_precision, keep_precision
from linnet.registry import ATTENTION

DEVIATION = 0.02  # of the initial entries of E


class LinformerOptions(Settings):
    """`k`: mixtures per head; `max_length`: the length of the longest sequence, the columns of E."""

    k: Count = 128
    max_length: Count = 4096


@ATTENTION.add("linformer")
class LinformerAttention(Core):
    """Keys and values, projected along the token axis to a fixed number."""

    what = "softmax over k learned mixtures of the keys"
    paper = "Linformer: Self-Attention with Linear Complexity, arXiv 2006.04768"
    cost = "N k D"
    causal_form = False
    recurrent = False
    packed = False
    cross = True
    any_length = False
    Options = LinformerOptions
    options: LinformerOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: LinformerOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.E = nn.Parameter(torch.empty(heads, options.k, options.max_length))
        nn.init.normal_(self.E, std=DEVIATION)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        wide = accumulator_precision(q.dtype)
        check_masked_length(where.length, self.options.max_length, self.name)
        if where.real is not None:  # position by position
            there = block_turns(where.real)[0]
            k, v = (pick_block_tokens(x, there) for x in clear_masked(where.real, k, v))
        n = min(k.shape[2], self.options.max_length)
        with keep_precision(q.device):
            E = self.E[:, :, :n].to(wide)
            # One product per sequence: a wider one for the whole batch would round each sequence by its batch mates.
            k, v = (torch.stack([E @ one[:, :n].to(wide) for one in x.unbind()]) for x in (k, v))  # (B, H, k, .)
            return shared_piece_attention(q.to(wide), k, v, None, self.head_dim**-0.5)

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        wide = accumulator_precision(q.dtype)
        check_masked_length(where.length, self.options.max_length, self.name)
        position = where.position.expand(q.shape[0], -1).clamp(max=self.options.max_length - 1)
        E = self.E.to(wide)[:, :, position].permute(2, 0, 1, 3)  # (B, H, k, N)
        if where.real is not None:
            E = E * where.real[:, None, None]
            k = k.masked_fill(~where.real[:, None, :, None], 0)
        scores = q.to(wide) @ (E @ k.to(wide)).mT * self.head_dim**-0.5
        return scores.softmax(dim=-1) @ E  # M19
