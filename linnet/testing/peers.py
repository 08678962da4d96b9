"""Attentions of other libraries as functions o = f(q, k, v[, key_mask]) on (B,H,N,D), for the audit and the benchmarks.

Each adapter calls the library's own public objects, in evaluation mode, from a fixed seed, and passes on the key mask
if the library takes one. A library that offers only a module x -> y with its own projections is measured as such: x is
q with its heads merged, and k and v are not used. Nothing is imported before a peer is loaded. Sizes such as landmarks
and buckets are small, for the audit; if `load` gets a number of tokens, they are the library's own defaults.
"""

import contextlib
import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from linnet.errors import missing_extra_error_text

INSTALL = missing_extra_error_text("peers")


class MissingPeerError(Exception):
    """A peer cannot be loaded; the message says why, or how to install it."""


@dataclass(frozen=True)
class Peer:
    """One attention of another library; `build` makes it for (heads, head_dim)."""

    name: str  # in the tables
    package: str  # on PyPI
    causal: bool
    build: Callable[..., nn.Module]
    includes: str = ""  # what a call includes, for a fair comparison
    random: bool = False  # draws random numbers in each call, even in evaluation mode
    defaults: Callable[[int], Mapping[str, int]] = lambda tokens: {}  # the library's own sizes, as options of `build`
    linear: bool = False  # exactly the work of linear attention on features of width D
    install: str = INSTALL

    @property
    def version(self) -> str | None:
        """The installed version."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None

    def load(self, heads: int, head_dim: int, tokens: int | None = None) -> nn.Module:
        """The adapter, seeded and in evaluation mode; raises MissingPeerError if the package is absent or broken."""
        if self.version is None:
            raise MissingPeerError(self.install)
        options = {} if tokens is None else self.defaults(tokens)
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # warnings at import are not about the user's work
            torch.manual_seed(0)
            try:
                return self.build(heads, head_dim, **options).eval()
            except (ImportError, AttributeError, TypeError, OSError) as error:
                raise MissingPeerError(f"{self.package} {self.version} does not load: {error}") from error


def join_peer_heads(q: Tensor) -> Tensor:
    """Merge the heads: q (B,H,N,D) -> x (B,N,M)."""
    return q.transpose(1, 2).flatten(2)


def split_peer_heads(y: Tensor, heads: int) -> Tensor:
    """Split into heads: y (B,N,M) -> o (B,H,N,D)."""
    return y.unflatten(2, (heads, -1)).transpose(1, 2)


class Seeded(nn.Module):
    """Wraps an attention that draws random numbers, so that each call draws the same ones."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Call it from a fixed seed, and leave the caller's generator as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.attention(q, k, v, key_mask=key_mask)


class FastAttention(nn.Module):
    """performer-pytorch's core: FAVOR+ on heads; it takes no mask."""

    def __init__(self, heads: int, head_dim: int, causal: bool) -> None:
        super().__init__()
        from performer_pytorch import FastAttention as Theirs

        self.core = Theirs(dim_heads=head_dim, causal=causal)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o (B,H,N,D)."""
        return self.core(q, k, v)


class _PerformerSelfAttention(nn.Module):
    """performer-pytorch's module around that core; it takes a token mask."""

    def __init__(self, heads: int, head_dim: int, causal: bool) -> None:
        super().__init__()
        from performer_pytorch import SelfAttention as Theirs

        self.heads = heads
        self.module = Theirs(dim=heads * head_dim, heads=heads, dim_head=head_dim, causal=causal)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """The module on the tokens of q."""
        return split_peer_heads(self.module(join_peer_heads(q), mask=key_mask), self.heads)


class _LinearAttentionFunctions(nn.Module):
    """linear-attention-transformer's two functions; with a mask they overwrite k and v, so they get copies."""

    def __init__(self, heads: int, head_dim: int, causal: bool, bucket: int = 1) -> None:
        super().__init__()
        from linear_attention_transformer.linear_attention_transformer import causal_linear_attn, linear_attn

        self.causal, self.bucket, self.causal_fn, self.fn = causal, bucket, causal_linear_attn, linear_attn

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """o (B,H,N,D); the causal form has buckets of 1, as in the library's module, or of its default 64."""
        if key_mask is not None:
            k, v = k.clone(), v.clone()
        if self.causal:
            return self.causal_fn(q, k, v, kv_mask=key_mask, bucket_size=self.bucket)
        return self.fn(q, k, v, kv_mask=key_mask)


class LinformerSelfAttention(nn.Module):
    """linformer's module, for up to `length` tokens projected to `k`; it takes no mask."""

    def __init__(self, heads: int, head_dim: int, length: int = 512, k: int = 32) -> None:
        super().__init__()
        from linformer import LinformerSelfAttention as Theirs

        self.heads = heads
        self.module = Theirs(dim=heads * head_dim, seq_len=length, k=k, heads=heads)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The module on the tokens of q."""
        return split_peer_heads(self.module(join_peer_heads(q)), self.heads)


class NystromAttention(nn.Module):
    """nystrom-attention's module; it pads by itself, and masks that padding only if it gets a mask."""

    def __init__(self, heads: int, head_dim: int, landmarks: int = 16) -> None:
        super().__init__()
        from nystrom_attention import NystromAttention as Theirs

        self.heads = heads
        self.module = Theirs(dim=heads * head_dim, dim_head=head_dim, heads=heads, num_landmarks=landmarks)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """The module on the tokens of q, always with a mask."""
        x = join_peer_heads(q)
        mask = torch.ones(x.shape[:2], dtype=torch.bool) if key_mask is None else key_mask
        return split_peer_heads(self.module(x, mask=mask), self.heads)


class LSHSelfAttention(nn.Module):
    """reformer-pytorch's module, inside its own Autopadder, so that any length runs."""

    def __init__(self, heads: int, head_dim: int, causal: bool, bucket: int = 8) -> None:
        super().__init__()
        from reformer_pytorch import Autopadder
        from reformer_pytorch import LSHSelfAttention as Theirs

        self.heads = heads
        self.module = Autopadder(Theirs(dim=heads * head_dim, heads=heads, bucket_size=bucket, causal=causal))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """The module on the tokens of q."""
        return split_peer_heads(self.module(join_peer_heads(q), input_mask=key_mask), self.heads)


class _NaiveLinearAttention(nn.Module):
    """flash-linear-attention's reference function in plain torch, padded to multiples of 64; its kernels need a GPU."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        from fla.ops.linear_attn.naive import naive_chunk_linear_attn

        self.fn = naive_chunk_linear_attn

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o (B,H,N,D); the library takes (B,N,H,D)."""
        N = q.shape[2]
        q, k, v = (nn.functional.pad(x, (0, 0, 0, -N % 64)).transpose(1, 2) for x in (q, k, v))
        return self.fn(q, k, v, scale=1.0).transpose(1, 2)[:, :, :N]


class _CausalProduct(nn.Module):
    """pytorch-fast-transformers' compiled causal product."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        from fast_transformers.causal_product import causal_dot_product

        self.fn = causal_dot_product

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o (B,H,N,D)."""
        return self.fn(q, k, v)


class _FastLinearAttention(nn.Module):
    """pytorch-fast-transformers' bidirectional module with its 1+elu features."""

    all_ones = True  # the module reads only this attribute of its N x N mask, so this object replaces the mask

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        from fast_transformers.attention import LinearAttention
        from fast_transformers.masking import LengthMask

        self.module, self.mask = LinearAttention(head_dim), LengthMask

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o (B,H,N,D); the library takes (B,N,H,D)."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        lengths = self.mask(torch.full((q.shape[0],), q.shape[1]))
        return self.module(q, k, v, self, lengths, lengths).transpose(1, 2)


def _both(name: str, package: str, adapter: type[nn.Module], includes: str, **more: Any) -> tuple[Peer, Peer]:
    """The causal and the bidirectional form of one peer."""
    return (
        Peer(name, package, True, partial(adapter, causal=True), includes, **more),
        Peer(name, package, False, partial(adapter, causal=False), includes, **more),
    )


COMPILED = "pip install pytorch-fast-transformers, which compiles C++"
LINEAR = "linear-attention-transformer"
PEERS = (
    Peer("flash-linear-attention", "flash-linear-attention", True, _NaiveLinearAttention, "bare product", linear=True),
    Peer(
        *(LINEAR, LINEAR, True, partial(_LinearAttentionFunctions, causal=True)),
        *("features, denominator; a token does not see its own bucket",),
        defaults=lambda tokens: {"bucket": 64},
        linear=True,
    ),
    Peer(
        *(LINEAR, LINEAR, False, partial(_LinearAttentionFunctions, causal=False), "features, denominator"),
        linear=True,
    ),
    Peer(
        *("linformer", "linformer", False, LinformerSelfAttention, "projections; softmax over 256 mixed keys"),
        defaults=lambda tokens: {"length": tokens, "k": 256},
    ),
    Peer(
        *("nystrom-attention", "nystrom-attention", False, NystromAttention, "projections; 256 landmarks"),
        defaults=lambda tokens: {"landmarks": 256},
    ),
    *_both("performer-pytorch", "performer-pytorch", FastAttention, "266 random features, denominator"),
    *_both(
        *("performer-pytorch SelfAttention", "performer-pytorch", _PerformerSelfAttention),
        *("projections; 266 random features, denominator",),
    ),
    Peer(
        *("pytorch-fast-transformers", "pytorch-fast-transformers", True, _CausalProduct, "bare product"),
        linear=True,
        install=COMPILED,
    ),
    Peer(
        *("pytorch-fast-transformers", "pytorch-fast-transformers", False, _FastLinearAttention),
        *("1+elu features, denominator",),
        linear=True,
        install=COMPILED,
    ),
    *_both(
        *("reformer-pytorch", "reformer-pytorch", LSHSelfAttention, "projections; 8 hashes, buckets of 64"),
        random=True,
        defaults=lambda tokens: {"bucket": 64},
    ),
)
