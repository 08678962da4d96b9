"""A replacement for torch.nn.MultiheadAttention with any mechanism inside: same signature, same parameter names."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linnet.attention.base import check_count, create_attention
from linnet.errors import InputError, UnsupportedError


class MultiheadAttention(nn.Module):
    """torch.nn.MultiheadAttention's arguments and state_dict, and `attention`, the name of a mechanism.

    `options` are those of the mechanism. Queries, keys and values have the same length. `attn_mask` may only be the
    causal mask; `is_causal=True` alone is enough. `need_weights=True`, torch's default, costs N^2 memory: pass False if
    you do not use the weights.
    """

    # nn.TransformerEncoderLayer would otherwise bypass this module with its own fused softmax attention.
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        attention: str = "softmax",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if add_bias_kv or add_zero_attn:
            raise UnsupportedError("add_bias_kv and add_zero_attn are not supported: False is allowed")
        if (kdim or embed_dim, vdim or embed_dim) != (embed_dim, embed_dim):
            raise UnsupportedError(f"kdim={kdim}, vdim={vdim}: only embed_dim = {embed_dim} is supported")
        check_count("embed_dim", embed_dim)
        check_count("num_heads", num_heads)
        if embed_dim % num_heads:
            raise InputError(f"embed_dim {embed_dim} and num_heads {num_heads}: num_heads must divide embed_dim")
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        given = dict(options or {}, **({"dropout": dropout} if dropout else {}))
        core = create_attention(attention, heads=num_heads, head_dim=embed_dim // num_heads, causal=False, **given)
        self.core = core.to(device=device, dtype=dtype)
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim, **place))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim, **place)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **place)
        nn.init.xavier_uniform_(self.in_proj_weight)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, weights or None), shaped as torch's; in `key_padding_mask` True (or -inf) means: ignore."""
        for name, x in (("query", query), ("key", key), ("value", value)):
            if not isinstance(x, Tensor):
                raise InputError(f"{name} is a {type(x).__name__}: it must be a tensor")
            if x.dtype != self.in_proj_weight.dtype and not torch.is_autocast_enabled(x.device.type):
                raise InputError(f"{name} is {x.dtype}: the parameters are {self.in_proj_weight.dtype}")
        for name, mask in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
            if mask is not None and not isinstance(mask, Tensor):
                raise InputError(f"{name} is a {type(mask).__name__}: it must be a tensor")
        batched = query.dim() == 3
        inputs = [x if batched else x.unsqueeze(0) for x in (query, key, value)]
        if batched and not self.batch_first:
            inputs = [x.transpose(0, 1) for x in inputs]
        for name, x in zip(("query", "key", "value"), inputs, strict=True):
            if x.dim() != 3 or x.shape[2] != self.embed_dim:
                axes = "batch, tokens and width" if batched else "tokens and width"
                raise InputError(f"{name} has shape {tuple(x.shape)}: it must have {axes} {self.embed_dim}")
        causal = is_causal or self._is_causal(attn_mask, inputs[0].shape[1])
        key_mask = self._key_mask(key_padding_mask, batched)
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(x, weight, bias).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for x, weight, bias in zip(inputs, self.in_proj_weight.chunk(3), biases, strict=True)
        )
        where = self.core.layout(q, k, v, key_mask, None)
        y = self.out_proj(self.core.run(q, k, v, where, causal).transpose(1, 2).flatten(2))
        shown = need_weights and self.core.has_weights
        A = self.core.dense(q, k, where, causal) if shown else None  # (B, H, N, N)
        if A is not None and average_attn_weights:
            A = A.mean(dim=1)
        if not batched:
            return y.squeeze(0), None if A is None else A.squeeze(0)
        return y if self.batch_first else y.transpose(0, 1), A

    def _is_causal(self, attn_mask: Tensor | None, N: int) -> bool:
        """Whether `attn_mask` is the causal mask; any other mask is an error."""
        if attn_mask is None:
            return False
        future = torch.ones(N, N, dtype=torch.bool, device=attn_mask.device).triu(1)
        if attn_mask.dtype != torch.bool:
            future = torch.zeros(N, N, device=attn_mask.device).masked_fill(future, -torch.inf).to(attn_mask.dtype)
        if not torch.equal(attn_mask, future):
            raise UnsupportedError("attn_mask must be None or the causal mask (True or -inf above the diagonal)")
        return True

    def _key_mask(self, key_padding_mask: Tensor | None, batched: bool) -> Tensor | None:
        """torch's mask (True or -inf: ignore) as ours (True: a real token)."""
        if key_padding_mask is None:
            return None
        ignore = key_padding_mask
        if key_padding_mask.dtype != torch.bool:
            if not key_padding_mask.is_floating_point():
                raise InputError(f"key_padding_mask is {key_padding_mask.dtype}: it must be bool or floating point")
            ignore = key_padding_mask <= torch.finfo(key_padding_mask.dtype).min  # -inf, or the lowest number
            if not torch.compiler.is_compiling() and not (ignore | (key_padding_mask == 0)).all():
                raise UnsupportedError("key_padding_mask holds other values than 0 and -inf: True or -inf means ignore")
        return ~ignore if batched else ~ignore.unsqueeze(0)
