"""Mixed chunk attention: squared ReLU of scores inside chunks of C tokens, linear attention between them.

o = relu(q k^T + b)^2 v inside a chunk, masked by causality, plus far_q S, where S is the sum of far_k v^T over the
chunks before it. One chunk at a time is in cache; the backward pass makes its scores and S again.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from linnet.ops.custom_op import CustomOp


def chunked_relu_attention(
    near_q: Tensor, far_q: Tensor, near_k: Tensor, far_k: Tensor, v: Tensor, bias: Tensor
) -> Tensor:
    """o (B,N,E) of queries and keys (B,N,D) and v (B,N,E); `bias` (2C-1,) is that of the distances C-1, ..., 1-C.

    A key whose value is 0 counts for nothing, so masked keys need only cleared values.
    """
    o: Tensor = _chunked(near_q, far_q, near_k, far_k, v, bias)
    return o


def _bias_matrix(bias: Tensor) -> Tensor:
    """(C,C): the bias of distance t - s in row t and column s."""
    return bias.unfold(0, (len(bias) + 1) // 2, 1).flip(0)


def _chunks(N: int, C: int, back: bool = False) -> Iterator[slice]:
    starts = range(0, N, C)
    for t in reversed(starts) if back else starts:
        yield slice(t, min(t + C, N))


def _scores(q: Tensor, k: Tensor, biases: Tensor) -> Tensor:
    """relu(q k^T + b) of a chunk, which may be the short last one."""
    return torch.addmm(biases[: len(q), : len(q)], q, k.T).relu_().tril_()


def _forward(near_q: Tensor, far_q: Tensor, near_k: Tensor, far_k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    B, N, E = v.shape
    o, biases = torch.empty_like(v, memory_format=torch.contiguous_format), _bias_matrix(bias)
    S = v.new_empty(far_k.shape[2], E)
    for b in range(B):
        S.zero_()
        for c in _chunks(N, len(biases)):
            torch.mm(far_q[b, c], S, out=o[b, c])
            S.addmm_(far_k[b, c].T, v[b, c])  # M29
            A = _scores(near_q[b, c], near_k[b, c], biases)
            o[b, c].addmm_(A.mul_(A), v[b, c])
    return o


def _fake(near_q: Tensor, far_q: Tensor, near_k: Tensor, far_k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return torch.empty_like(v, memory_format=torch.contiguous_format)


def _backward(
    g: Tensor, near_q: Tensor, far_q: Tensor, near_k: Tensor, far_k: Tensor, v: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of all tensors: with R = relu(q k^T + b), dX = 2 R (g v^T)."""
    B, N, E = v.shape
    slopes = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (near_q, far_q, near_k, far_k, v)]
    biases = _bias_matrix(bias)
    C, total = len(biases), torch.zeros_like(biases, dtype=torch.float64)
    for b in range(B):
        dnear_q, dfar_q, dnear_k, dfar_k, dv = (x[b] for x in slopes)
        _far_backward(g[b], far_q[b], far_k[b], v[b], (dfar_q, dfar_k, dv), C)
        for c in _chunks(N, C):
            R = _scores(near_q[b, c], near_k[b, c], biases)
            dX = torch.mm(g[b, c], v[b, c].T).mul_(R).mul_(2)
            torch.mm(dX, near_k[b, c], out=dnear_q[c])
            torch.mm(dX.T, near_q[b, c], out=dnear_k[c])
            dv[c].addmm_(R.mul_(R).T, g[b, c])
            total[: len(R), : len(R)] += dX
    t = torch.arange(C, device=v.device)
    dbias = total.new_zeros(2 * C - 1).index_add_(0, (C - 1 - t[:, None] + t).flatten(), total.flatten())
    dnear_q, dfar_q, dnear_k, dfar_k, dv = slopes
    return dnear_q, dfar_q, dnear_k, dfar_k, dv, dbias.to(bias.dtype)


def _far_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, slopes: tuple[Tensor, Tensor, Tensor], C: int) -> None:
    """Write the gradients of the linear part of one sequence."""
    dq, dk, dv = slopes
    S = v.new_zeros(q.shape[1], v.shape[1])
    for c in _chunks(len(v), C):
        torch.mm(g[c], S.T, out=dq[c])
        S.addmm_(k[c].T, v[c])
    S.zero_()
    for c in _chunks(len(v), C, back=True):
        torch.mm(v[c], S.T, out=dk[c])
        torch.mm(k[c], S, out=dv[c])
        S.addmm_(q[c].T, g[c])


def _backward_fake(
    g: Tensor, near_q: Tensor, far_q: Tensor, near_k: Tensor, far_k: Tensor, v: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    same = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (near_q, far_q, near_k, far_k, v)]
    dnear_q, dfar_q, dnear_k, dfar_k, dv = same
    return dnear_q, dfar_q, dnear_k, dfar_k, dv, torch.empty_like(bias)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = _chunked_backward(g, *ctx.saved_tensors)
    return found


_chunked_backward = CustomOp("chunked_relu_backward", _backward, _backward_fake)
_chunked = CustomOp("chunked_relu", _forward, _fake, (_save, _gradients))
