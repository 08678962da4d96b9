"""One chunk of `exp_attention`: what C tokens read from a state, add to it, and see of each other.

Every weight is e^x with x <= 0. Inside a chunk, the second half of each block of 2 h tokens sees the first half
relative to the largest key up to the end of the first half, for h = LEAF, 2 LEAF, ..., C / 2. In leaves of LEAF
tokens each pair is computed by itself. So nothing ever depends on a later key. G = B * H. z is the last column
of S, as 1 is the last column of v: numerator and denominator are one product, and T is (G, D, E + 1).
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.ops.precision import FLOOR, accumulator_precision

Maybe = Tensor | None

CHUNK = 64  # tokens between two states
LEAF = 4  # tokens whose pairs are computed one by one


def exponential_chunks(q: Tensor, v: Tensor, run: Maybe, causal: bool) -> "list[tuple[int, Chunk]]":
    """Where each chunk starts, and its buffers. Sizes are powers of two, so the last may reach past the end."""
    N = q.shape[2]
    sizes = [(at, min(CHUNK, 1 << (N - at - 1).bit_length())) for at in range(0, N, CHUNK)]
    made = {C: Chunk(C, q, v, run, causal) for C in {C for _, C in sizes}}
    return [(at, made[C]) for at, C in sizes]


class _Level(NamedTuple):
    """Views of a chunk as b blocks of 2 h tokens: keys of first halves and queries of second halves."""

    h: int
    k: Tensor  # (G, b, h, D)
    q: Tensor
    high: Tensor  # of second halves
    top: Tensor  # (G, b, 1, D): `high` at the end of first halves
    W: tuple[Tensor, Tensor]  # weights of keys and queries (G, b, h, D)
    KQ: tuple[Tensor, Tensor]  # the same as (G b, h, D)
    A: Tensor  # (G, b, h, h)
    run: Maybe  # (G, b, 2, h)


class _Leaf(NamedTuple):
    """Views of a chunk as n leaves of L tokens: the pairs that are d tokens apart."""

    k: Tensor  # (G, n, L - d, D)
    q: Tensor
    P: Tensor
    A: Tensor  # (G, n, L - d)
    run: tuple[Maybe, Maybe]


class Chunk:
    """Buffers for C tokens and the views that the loops need, made only once because that takes time."""

    def __init__(self, C: int, q: Tensor, v: Tensor, run: Maybe, causal: bool) -> None:
        (self.B, self.H, _, D), E = q.shape, v.shape[-1]
        self.L = min(LEAF, C)
        self.most = 0.0  # a bound on exponents that rounding may not exceed

        def new(width: int) -> Tensor:
            return torch.empty(self.B * self.H, C, width, dtype=accumulator_precision(v.dtype), device=v.device)

        self.q, self.k, self.high, self.W, self.dq, self.dk = (new(D) for _ in range(6))
        self.g, self.v, self.A = new(E + 1), new(E + 1).fill_(1), new(C).zero_()
        self.run = None if run is None else run.new_empty(self.B * self.H, C + 2)
        runs: tuple[Maybe, ...] = (None,) * 3 if self.run is None else self.run.split((1, C, 1), 1)
        self.before, self.here, self.after = runs
        self.levels = [self._level(2**i) for i in range(C.bit_length() - 1)] if causal else []
        self.leaves = [self._leaf(d) for d in range(self.L)] if causal else []

    def __len__(self) -> int:
        return self.q.shape[1]

    def _level(self, h: int) -> _Level:
        (k, _), (_, q), (low, high), W = (_halves(x, h) for x in (self.k, self.q, self.high, self.W))
        run = None if self.here is None else self.here.unflatten(1, (-1, 2, h))
        KQ = W[0].flatten(0, 1), W[1].flatten(0, 1)
        return _Level(h, k, q, high, low[:, :, -1:], W, KQ, _block(self.A, h), run)

    def _leaf(self, d: int) -> _Leaf:
        k, q = _pairs(self.k, self.L, d)[0], _pairs(self.q, self.L, d)[1]
        run = (None, None) if self.here is None else _pairs(self.here, self.L, d)
        return _Leaf(k, q, self.W.view(-1)[: k.numel()].view(k.shape), _diagonal(self.A, self.L, d), run)

    def load(self, to: Tensor, at: int, x: Tensor, fill: float = 0.0, real: Maybe = None) -> Tensor:
        """Copies tokens of x (B, H, N, D) from `at` on to a buffer, with `fill` past the end and where masked."""
        x = x[:, :, at : at + to.shape[1]]
        n, part = x.shape[2], to[..., : x.shape[-1]].unflatten(0, (self.B, self.H))
        part[:, :, :n].copy_(x)
        if n < to.shape[1]:
            part[:, :, n:].fill_(fill)
        if real is not None:
            part[:, :, :n].masked_fill_(~real[:, None, at : at + n, None], fill)
        return to

    def load_keys(self, at: int, k: Tensor, v: Tensor, real: Maybe) -> None:
        """Loads keys, -inf where masked, and values: the content of masked tokens is never read."""
        self.load(self.k, at, k, -torch.inf, real)
        self.load(self.v, at, v, 0.0, real)

    def load_runs(self, at: int, run: Maybe) -> None:
        """Loads the runs of the tokens, of the one before and of the one after; past the ends, the nearest run."""
        if run is not None and self.run is not None:
            index = torch.arange(at - 1, at + len(self) + 1, device=run.device).clamp_(0, run.shape[1] - 1)
            self.run.copy_(run[:, index].repeat_interleave(self.H, 0))

    def load_queries(self, at: int, q: Tensor, r: Tensor, less: Tensor, g: Tensor, h: Tensor) -> None:
        """q - r - less, and (g, -h)."""
        r, less, h = (self.load(torch.empty_like(self.q[..., :1]), at, x.unsqueeze(-1)) for x in (r, less, h))
        self.load(self.q, at, q, -torch.inf).sub_(r).sub_(less)
        torch.neg(h, out=self.load(self.g, at, g)[..., -1:])

    def read(self, top: Tensor, x: Tensor, run: Maybe) -> Tensor:
        """The weights e^{x + top} with which the tokens of run `run` read a state."""
        return exponential_chunk_(_hide_(torch.add(x, top, out=self.W), self.here, run), self.most)

    def absorb(
        self, T: Tensor, top: Tensor, x: Tensor, values: Tensor, old: Maybe = None, new: Maybe = None
    ) -> tuple[Tensor, Tensor]:
        """The state of run `new`, from that of run `old` (overwritten) and the tokens x."""
        x, last = _hide(x, self.here, new), _hide(top, old, new)
        top = torch.maximum(last, x.amax(1, keepdim=True)).clamp_(min=FLOOR)
        W = exponential_chunk_(torch.sub(x, top, out=self.W))
        return T.mul_(exponential_chunk_(last - top).mT).baddbmm_(W.mT, values), top  # M12

    def running_max(self, top: Tensor) -> Tensor:
        """The largest key that each token sees, per channel, `top` being that of the run before."""
        torch.maximum(self.k, _hide(top, self.here, self.before), out=self.high)
        for x in self.levels:
            runs = (None, None) if x.run is None else (x.run[:, :, 1], x.run[:, :, 0, -1:])
            torch.maximum(x.high, _hide(x.top, *runs), out=x.high)
        return self.high.clamp_(min=FLOOR)

    def scores(self, dA: Maybe = None) -> Tensor:
        """A_ts = sum_c e^{q_tc + k_sc}, s <= t, after `running_max`; with dA, adds its gradients to dq and dk."""
        for x in self.levels[self.L.bit_length() - 1 :]:
            torch.sub(x.k, x.top, out=x.W[0])
            torch.add(x.q, x.top, out=x.W[1])
            if x.run is not None:
                _hide_(self.W.unflatten(1, (-1, 2, x.h)), x.run, x.run[:, :, :1, -1:])
            exponential_chunk_(self.W, self.most)
            K, Q = x.KQ
            x.A.copy_(torch.bmm(Q, K.mT).view(x.A.shape))
            if dA is not None:
                X, dk, dq = _block(dA, x.h).flatten(0, 1), _halves(self.dk, x.h)[0], _halves(self.dq, x.h)[1]
                dk.addcmul_(x.W[0], torch.bmm(X.mT, Q).view(dk.shape))
                dq.addcmul_(x.W[1], torch.bmm(X, K).view(dq.shape))
        for d, y in enumerate(self.leaves):
            exponential_chunk_(_hide_(torch.add(y.q, y.k, out=y.P), *y.run), self.most)
            y.A.copy_(y.P.sum(-1))
            if dA is not None:
                y.P.mul_(_diagonal(dA, self.L, d).unsqueeze(-1))
                _pairs(self.dk, self.L, d)[0].add_(y.P)
                _pairs(self.dq, self.L, d)[1].add_(y.P)
        return self.A


def store_exponential_chunk(x: Tensor, at: int, part: Tensor) -> None:
    """Writes a chunk (G, C, ...) into x (B, H, N, ...)."""
    to = x[:, :, at : at + part.shape[1]]
    to.copy_(part.unflatten(0, x.shape[:2])[:, :, : to.shape[2]])


def exponential_chunk_(x: Tensor, most: float = 0.0) -> Tensor:
    """e^x in place, x <= most; negligible weights become 0, since denormal numbers are a hundred times slower."""
    least = -40.0 if x.dtype == torch.float32 else -320.0
    return F.threshold(x.clamp_(min=least - 1, max=most).exp_(), math.exp(least), 0.0, inplace=True)


def _hide(x: Tensor, a: Maybe, b: Maybe) -> Tensor:
    """x (..., D) with -inf where the runs a and b (...) differ."""
    return x if a is None or b is None else x.masked_fill((a != b).unsqueeze(-1), -torch.inf)


def _hide_(x: Tensor, a: Maybe, b: Maybe) -> Tensor:
    """`_hide` in place."""
    return x if a is None or b is None else x.masked_fill_((a != b).unsqueeze(-1), -torch.inf)


def _halves(x: Tensor, h: int) -> tuple[Tensor, Tensor]:
    """First and second halves (G, b, h, ...) of all blocks of 2 h tokens."""
    left, right = x.unflatten(1, (-1, 2, h)).unbind(2)
    return left, right


def _pairs(x: Tensor, L: int, d: int) -> tuple[Tensor, Tensor]:
    """The earlier and the later of all tokens (G, n, L - d, ...) that are d apart in leaves of L."""
    x = x.unflatten(1, (-1, L))
    return x[:, :, : L - d], x[:, :, d:]


def _block(A: Tensor, h: int) -> Tensor:
    """The entries (G, b, h, h) of A (G, C, C) where second halves of blocks of 2 h meet first halves."""
    G, b = A.shape[0], A.shape[1] // (2 * h)
    return A.view(G, b, 2, h, b, 2, h)[:, :, 1, :, :, 0].diagonal(dim1=1, dim2=3).movedim(-1, 1)


def _diagonal(A: Tensor, L: int, d: int) -> Tensor:
    """The entries (G, n, L - d) of A (G, C, C) that are d tokens apart in leaves of L."""
    G, n = A.shape[0], A.shape[1] // L
    return A.view(G, n, L, n, L).diagonal(dim1=1, dim2=3).diagonal(-d, 1, 2)
