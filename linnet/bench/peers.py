"""Attentions of other libraries as functions o = f(q, k, v[, key_mask]) on (B,H,N,D), so that they can be measured.

Each adapter calls the library's own public objects, in evaluation mode, from a fixed seed, and hands on the key mask
where the library takes one. A library that offers only a module x -> y with its own projections is measured as that:
x is q with its heads merged, and k and v are not used. Nothing is imported before a peer is loaded.
"""

import contextlib
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor, nn

INSTALL = "pip install 'linnet[peers]'"


class MissingPeerError(Exception):
    """A peer cannot be loaded; the message says why, or how to get it."""


@dataclass(frozen=True)
class Peer:
    """One attention of another library; `build` makes it for (heads, head_dim)."""

    name: str  # in the tables
    package: str  # on PyPI
    causal: bool
    build: Callable[[int, int], nn.Module]
    random: bool = False  # draws random numbers in each call, also in evaluation mode

    @property
    def version(self) -> str | None:
        """The installed version."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None

    def load(self, heads: int, head_dim: int) -> nn.Module:
        """The adapter, seeded and in evaluation mode; MissingPeerError where the package is absent or broken."""
        if self.version is None:
            raise MissingPeerError(INSTALL)
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # what a package says while it is imported is not about the user's work
            torch.manual_seed(0)
            try:
                return self.build(heads, head_dim).eval()
            except (ImportError, AttributeError, TypeError) as error:
                raise MissingPeerError(f"{self.package} {self.version} does not load: {error}") from error


def tokens(q: Tensor) -> Tensor:
    """x (B,N,M) of q (B,H,N,D): the heads merged."""
    return q.transpose(1, 2).flatten(2)


def split(y: Tensor, heads: int) -> Tensor:
    """o (B,H,N,D) of y (B,N,M)."""
    return y.unflatten(2, (heads, -1)).transpose(1, 2)


class Seeded(nn.Module):
    """An attention that draws random numbers, made to draw the same ones in each call."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """The call, with the generator as it was before and after."""
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


class PerformerSelfAttention(nn.Module):
    """performer-pytorch's module around that core, which takes a mask of the tokens."""

    def __init__(self, heads: int, head_dim: int, causal: bool) -> None:
        super().__init__()
        from performer_pytorch import SelfAttention as Theirs

        self.heads = heads
        self.module = Theirs(dim=heads * head_dim, heads=heads, dim_head=head_dim, causal=causal)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """The module on the tokens of q."""
        return split(self.module(tokens(q), mask=key_mask), self.heads)


class LinearAttentionFunctions(nn.Module):
    """linear-attention-transformer's two functions; copies go in, since with a mask they write into keys and values."""

    def __init__(self, heads: int, head_dim: int, causal: bool) -> None:
        super().__init__()
        from linear_attention_transformer.linear_attention_transformer import causal_linear_attn, linear_attn

        self.causal, self.causal_fn, self.fn = causal, causal_linear_attn, linear_attn

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """o (B,H,N,D); the causal form with `bucket_size=1`, as the library's own module calls it."""
        if self.causal:
            return self.causal_fn(q, k.clone(), v.clone(), kv_mask=key_mask, bucket_size=1)
        return self.fn(q, k.clone(), v.clone(), kv_mask=key_mask)


class LinformerSelfAttention(nn.Module):
    """linformer's module, for up to 512 tokens projected to 32; it takes no mask."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        from linformer import LinformerSelfAttention as Theirs

        self.heads = heads
        self.module = Theirs(dim=heads * head_dim, seq_len=512, k=32, heads=heads)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The module on the tokens of q."""
        return split(self.module(tokens(q)), self.heads)


class NystromAttention(nn.Module):
    """nystrom-attention's module with 16 landmarks; it pads on its own and marks that only where it is given a mask."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        from nystrom_attention import NystromAttention as Theirs

        self.heads = heads
        self.module = Theirs(dim=heads * head_dim, dim_head=head_dim, heads=heads, num_landmarks=16)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """The module on the tokens of q, always with a mask."""
        x = tokens(q)
        mask = torch.ones(x.shape[:2], dtype=torch.bool) if key_mask is None else key_mask
        return split(self.module(x, mask=mask), self.heads)


class LSHSelfAttention(nn.Module):
    """reformer-pytorch's module with buckets of 8 tokens, inside its own Autopadder, so that any length runs."""

    def __init__(self, heads: int, head_dim: int, causal: bool) -> None:
        super().__init__()
        from reformer_pytorch import Autopadder
        from reformer_pytorch import LSHSelfAttention as Theirs

        self.heads = heads
        self.module = Autopadder(Theirs(dim=heads * head_dim, heads=heads, bucket_size=8, causal=causal))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """The module on the tokens of q."""
        return split(self.module(tokens(q), input_mask=key_mask), self.heads)


def _both(name: str, package: str, adapter: type[nn.Module], random: bool = False) -> tuple[Peer, Peer]:
    """The causal and the bidirectional form of a peer that has both."""
    return (
        Peer(name, package, True, partial(adapter, causal=True), random),
        Peer(name, package, False, partial(adapter, causal=False), random),
    )


PEERS = (
    *_both("linear-attention-transformer", "linear-attention-transformer", LinearAttentionFunctions),
    Peer("linformer", "linformer", False, LinformerSelfAttention),
    Peer("nystrom-attention", "nystrom-attention", False, NystromAttention),
    *_both("performer-pytorch", "performer-pytorch", FastAttention),
    *_both("performer-pytorch SelfAttention", "performer-pytorch", PerformerSelfAttention),
    *_both("reformer-pytorch", "reformer-pytorch", LSHSelfAttention, random=True),
)
