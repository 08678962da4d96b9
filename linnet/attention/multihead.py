"""A replacement for torch.nn.MultiheadAttention with any mechanism inside: same signature, same parameter names."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from linnet.attention.base import create_attention
from linnet.attention.projections import check_attention_count, project_exactly
from linnet.errors import InputError, UnsupportedError
from linnet.registry import ATTENTION

HIDDEN = -1e4  # a floating mask hides a key by -inf or by a number up to this, such as -1e9 or the lowest one
CURE = "pass None, or the causal mask (is_causal=True is enough), and hide padding by key_padding_mask"


class MultiheadAttention(nn.Module):
    """torch.nn.MultiheadAttention's arguments and state_dict, and `attention`, the name of a mechanism.

    `options` are those of the mechanism. If `query` and `key` are different tensors, this is cross-attention: key
    and value may have another length and, with `kdim` and `vdim`, other widths; `key_padding_mask` hides keys only.
    `attn_mask` may only be the causal mask; `is_causal=True` alone is enough. `dropout` drops attention weights; a
    mechanism without dropout of its weights drops entries of the output instead. `need_weights=True`, torch's default,
    costs N^2 memory: pass False if you do not use the weights.
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
        check_attention_count("embed_dim", embed_dim)
        check_attention_count("num_heads", num_heads)
        if embed_dim % num_heads:
            raise InputError(f"embed_dim {embed_dim} and num_heads {num_heads}: num_heads must divide embed_dim")
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        check_attention_count("kdim", self.kdim)
        check_attention_count("vdim", self.vdim)
        if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise InputError(f"dropout is {dropout!r}: it must be a number of at least 0 and less than 1")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.drops_output = bool(dropout) and "dropout" not in ATTENTION[attention].Options.model_fields
        if not isinstance(options, dict | None):
            raise InputError(f"options is {options!r}: it must be a dictionary, such as {{'phi': 'elu'}}")
        given = dict(options or {}, **({"dropout": dropout} if dropout and not self.drops_output else {}))
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        given = {**place, **given}
        core = create_attention(attention, heads=num_heads, head_dim=embed_dim // num_heads, causal=False, **given)
        self.core = core
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim, **place))
            nn.init.xavier_uniform_(self.in_proj_weight)
        else:
            try:
                core.check_cross()
            except UnsupportedError as error:
                raise UnsupportedError(f"kdim={kdim}, vdim={vdim}: {error}") from None
            self.q_proj_weight = nn.Parameter(torch.empty(embed_dim, embed_dim, **place))
            self.k_proj_weight = nn.Parameter(torch.empty(embed_dim, self.kdim, **place))
            self.v_proj_weight = nn.Parameter(torch.empty(embed_dim, self.vdim, **place))
            for weight in (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
                nn.init.xavier_uniform_(weight)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim, **place)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **place)
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
        batched, (x_q, x_k, x_v) = self._inputs(query, key, value)
        for name, mask in (("key_padding_mask", key_padding_mask), ("attn_mask", attn_mask)):
            if mask is not None and not isinstance(mask, Tensor):
                raise InputError(f"{name} is a {type(mask).__name__}: it must be a tensor")
        (B, T, _), N = x_q.shape, x_k.shape[1]
        # Under a compiler, torch's layers pass a symbolic truth value with their mask; then the mask decides.
        causal = is_causal is True or (bool(is_causal) if attn_mask is None else self._is_causal(attn_mask, B, T, N))
        key_mask = self._key_mask(key_padding_mask, batched, B, N)
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        exact = self.core.chooses
        q, k, v = (
            project_exactly(x, weight, bias, exact).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for x, weight, bias in zip((x_q, x_k, x_v), self._weights(), biases, strict=True)
        )
        cross = query is not key and self._crosses(T == N, causal, key_mask)
        where = self.core.layout(q, k, v, key_mask, None, cross)
        o = self.core.run(q, k, v, where, causal).transpose(1, 2).flatten(2)
        y = self.out_proj(o.to(x_q.dtype) if exact else o)
        y = F.dropout(y, self.dropout, self.training) if self.drops_output else y
        shown = need_weights and self.core.has_weights
        A = self.core.dense(q, k, where, causal) if shown else None  # (B, H, T, N)
        if A is not None and average_attn_weights:
            A = A.mean(dim=1)
        if not batched:
            return y.squeeze(0), None if A is None else A.squeeze(0)
        return y if self.batch_first else y.transpose(0, 1), A

    def _weights(self) -> tuple[Tensor, ...]:
        """The projections of query, key and value."""
        if self.kdim == self.vdim == self.embed_dim:
            return self.in_proj_weight.chunk(3)
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight

    def _inputs(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[bool, list[Tensor]]:
        """Whether there is a batch, and the three inputs as (batch, tokens, width)."""
        named, dtype = {"query": query, "key": key, "value": value}, self._weights()[0].dtype
        for name, x in named.items():
            if not isinstance(x, Tensor):
                raise InputError(f"{name} is a {type(x).__name__}: it must be a tensor")
            if x.is_nested:  # from an nn.TransformerEncoder that was built around torch's module
                hint = "set use_nested_tensor=False in nn.TransformerEncoder"
                raise UnsupportedError(f"{name} is a nested tensor: {hint}")
            if x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
                raise InputError(f"{name} is {x.dtype}: the parameters are {dtype}")
        batched, axes = query.dim() == 3, "tokens and width"
        axes = f"batch, {axes}" if batched else axes
        inputs = []
        for (name, x), width in zip(named.items(), (self.embed_dim, self.kdim, self.vdim), strict=True):
            if x.dim() != 2 + batched or x.shape[-1] != width:
                raise InputError(f"{name} has shape {tuple(x.shape)}: it must have {axes} {width}")
            inputs.append((x if self.batch_first else x.transpose(0, 1)) if batched else x.unsqueeze(0))
        return batched, inputs

    def _crosses(self, equal: bool, causal: bool, key_mask: Tensor | None) -> bool:
        """Whether a query that is not the key counts as another sequence; False needs equal lengths and no mask."""
        if causal and not equal:
            raise UnsupportedError("a causal mask needs a query and a key of the same length")
        try:
            self.core.check_cross()
        except UnsupportedError:
            if equal and key_mask is None:  # token t of the query has the position of token t of the key
                return False
            raise
        return True

    def _is_causal(self, attn_mask: Tensor | None, B: int, T: int, N: int) -> bool:
        """Whether `attn_mask` is the causal mask; a mask of zeros hides nothing; any other mask is an error."""
        if attn_mask is None:
            return False
        if tuple(attn_mask.shape) not in ((T, N), (B * self.num_heads, T, N)):
            shape = f"({T}, {N}) or ({B * self.num_heads}, {T}, {N})"
            raise InputError(f"attn_mask has shape {tuple(attn_mask.shape)}: it must be (query, key) = {shape}")
        if attn_mask.is_meta:  # it has no values, so nothing is computed from them either
            return True
        hidden, clear = _hidden("attn_mask", attn_mask)
        future = torch.ones(T, N, dtype=torch.bool, device=attn_mask.device).triu(1)
        known = (hidden == future).all() & clear
        if torch.compiler.is_compiling():  # no value is known, so the graph checks it when it runs
            torch._assert_async(known, f"attn_mask is not the causal mask, the only one that compiles: {CURE}")
            return True
        if clear and not hidden.any():
            return False
        if not known:
            upside_down = " (its opposite is: in torch's modules True hides a key)" if (hidden != future).all() else ""
            raise UnsupportedError(f"attn_mask is not the causal mask{upside_down}: {CURE}")
        return True

    def _key_mask(self, key_padding_mask: Tensor | None, batched: bool, B: int, N: int) -> Tensor | None:
        """Convert torch's mask (True or -inf: ignore) to linnet's (True: a real token)."""
        if key_padding_mask is None:
            return None
        shape = (B, N) if batched else (N,)
        if tuple(key_padding_mask.shape) != shape:
            raise InputError(f"key_padding_mask has shape {tuple(key_padding_mask.shape)}: it must be {shape}")
        ignore, clear = _hidden("key_padding_mask", key_padding_mask)
        fault = "key_padding_mask holds other values than 0 and -inf: True or -inf means ignore"
        if key_padding_mask.dtype == torch.bool or ignore.is_meta:  # clear, which a compiler need not see, or no values
            pass
        elif torch.compiler.is_compiling():  # checked when the graph runs
            torch._assert_async(clear, fault)
        elif not clear:
            raise UnsupportedError(fault)
        return ~ignore if batched else ~ignore.unsqueeze(0)


def _hidden(name: str, mask: Tensor) -> tuple[Tensor, Tensor]:
    """What a mask of bool (True: hidden) or numbers to add hides, and whether it holds nothing but hidden and seen."""
    if mask.dtype == torch.bool:
        return mask, torch.ones((), dtype=torch.bool, device=mask.device)
    if not mask.is_floating_point():
        raise InputError(f"{name} is {mask.dtype}: it must be bool or floating point")
    hidden = mask <= HIDDEN
    return hidden, (hidden | (mask == 0)).all()
