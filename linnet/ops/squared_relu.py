"""Squared ReLU attention with a bias by distance, o = relu(q k^T + b)^2 v, in memory linear in the number of tokens.

The gated units score with it. A strip of queries passes over all keys while its scores are in cache; the backward pass
computes them again. The bias is a vector, one number per distance, and so is its gradient.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from linnet.ops.custom_op import CustomOp

STRIP = 256  # queries whose scores are held at once


def squared_relu_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, causal: bool) -> Tensor:
    """o (B,N,E) of q, k (B,N,D) and v (B,N,E); `bias` (2N-1,) is that of the distances t - s = N-1, ..., 1-N.

    A key whose value is 0 counts for nothing, so masked keys need only cleared values.
    """
    o: Tensor = _squared_relu(q, k, v, bias, causal)
    return o


class _Strips:
    """The strips of a call: the scores of each, from one matrix of biases that all of them slice."""

    def __init__(self, q: Tensor, k: Tensor, bias: Tensor, causal: bool) -> None:
        N = q.shape[1]
        self.q, self.k, self.causal, self.N, self.rows = q, k, causal, N, min(STRIP, N)
        # Row r of strip 0 begins with the bias of distance r in column N; later strips begin in earlier columns.
        self.biases = F.pad(bias, (self.rows, 0)).unfold(0, 2 * N, 1).flip(0)  # (rows, 2 N)

    def __iter__(self) -> Any:
        """(sequence, queries from, to, keys that they need)."""
        for b in range(len(self.q)):
            for t in range(0, self.N, self.rows):
                e = min(t + self.rows, self.N)
                yield b, t, e, e if self.causal else self.N

    def scores(self, b: int, t: int, e: int, n: int) -> Tensor:
        """relu(q k^T + b) of queries t ... e and the first n keys."""
        bias = self.biases[: e - t, self.N - t : self.N - t + n]
        S = torch.addmm(bias, self.q[b, t:e], self.k[b, :n].T).relu_()
        if self.causal:
            S[:, t:].tril_()
        return S


def _forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, causal: bool) -> Tensor:
    o = torch.empty_like(v, memory_format=torch.contiguous_format)
    strips = _Strips(q, k, bias, causal)
    for b, t, e, n in strips:
        S = strips.scores(b, t, e, n)
        torch.mm(S.mul_(S), v[b, :n], out=o[b, t:e])
    return o


def _fake(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, causal: bool) -> Tensor:
    return torch.empty_like(v, memory_format=torch.contiguous_format)


def _backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the bias: with R = relu(q k^T + b), dX = 2 R (g v^T)."""
    N, strips = q.shape[1], _Strips(q, k, bias, causal)
    R = strips.rows
    dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    total = torch.zeros(2 * N + R, dtype=torch.float64, device=q.device)
    # dX between margins of zeros: read with rows one longer, its columns are the diagonals.
    wide = q.new_zeros(R, N + 2 * R)
    for b, t, e, n in strips:
        if t == 0 or e - t < R:
            wide.zero_()
        S, dX = strips.scores(b, t, e, n), wide[: e - t, R : R + n]
        torch.mm(g[b, t:e], v[b, :n].T, out=dX)
        dX.mul_(S).mul_(2)
        dv[b, :n].addmm_(S.mul_(S).T, g[b, t:e])
        torch.mm(dX, k[b, :n], out=dq[b, t:e])
        dk[b, :n].addmm_(dX.T, q[b, t:e])
        diagonals = wide.as_strided((R, N + R), (N + 2 * R + 1, 1)).sum(dim=0)
        total[N - t : 2 * N - t + R] += diagonals
    return dq, dk, dv, total[R + 1 : R + 2 * N].to(bias.dtype)


def _backward_fake(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return dq, dk, dv, torch.empty_like(bias)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.causal = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    return *_squared_relu_backward(g, *ctx.saved_tensors, ctx.causal), None


_squared_relu_backward = CustomOp("squared_relu_backward", _backward, _backward_fake)
_squared_relu = CustomOp("squared_relu", _forward, _fake, (_save, _gradients))
