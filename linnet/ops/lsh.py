"""Attention inside chunks of a sorted order: each token sees the tokens of its chunk and of the chunk before.

The caller gives several orders for each row. The softmax runs over all of them together, so a key that two orders bring
near counts twice. A loop over the rows keeps the scores of one row and one order in cache, and the backward pass
computes them again: only inputs, the output and two numbers per token are saved.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from linnet.ops.custom_op import CustomOp

SELF = -5e4  # the score of a token with itself: below any other
UNSEEN = -1e9  # the score of an absent key: its weight is 0 even beside SELF


def lsh_attention(q: Tensor, k: Tensor, v: Tensor, order: Tensor, count: Tensor | None, chunk: int) -> Tensor:
    """o (G,N,E) of G rows q, k (G,N,D), v (G,N,E), float32 or wider, whose scores are q.k.

    `order` (G,R,N) holds the tokens of each row in R orders, the first `count` (G,) of them real; None: all are.
    A token sees itself only where it sees nothing else. The softmax is over the R orders together.
    """
    return _attention(q.contiguous(), k.contiguous(), v.contiguous(), order, count, min(chunk, q.shape[1]))[0]


class _Chunks:
    """The chunks of one row in one order, in buffers that all rows share."""

    def __init__(self, q: Tensor, v: Tensor, chunk: int) -> None:
        N, c = q.shape[1], chunk
        n = -(-N // c)
        self.n, self.c, self.rest = n, c, n * c - N
        self.q, self.S = q.new_empty(n * c, q.shape[2]), q.new_empty(n, c, 2 * c)
        self.k, self.v = (x.new_zeros((n + 1) * c, x.shape[2]) for x in (q, v))  # a chunk of zeros leads
        place = torch.arange(n * c, device=q.device).view(n, c)  # of each key in the order
        never = torch.full_like(place[:1], n * c)
        self.place = torch.cat([torch.cat([never, place[:-1]]), place], dim=1)[:, None]  # (n, 1, 2c)

    def load(self, q: Tensor, k: Tensor, v: Tensor, index: Tensor) -> None:
        """A row's tokens (N,.) in the order `index` (n c,)."""
        torch.index_select(q, 0, index, out=self.q)
        torch.index_select(k, 0, index, out=self.k[self.c :])
        torch.index_select(v, 0, index, out=self.v[self.c :])

    def split(self, x: Tensor) -> Tensor:
        """(n, c, .) of (n c, .)."""
        return x.view(self.n, self.c, -1)

    def windows(self, x: Tensor) -> Tensor:
        """(n, 2c, .): each chunk after the one before it."""
        width = x.shape[1]
        return x.as_strided((self.n, 2 * self.c, width), (self.c * width, width, 1))

    def own(self, x: Tensor) -> Tensor:
        """The diagonal of (n, c, 2c): each token with itself."""
        return x[..., self.c :].diagonal(dim1=1, dim2=2)

    def scores(self, count: Tensor | None) -> Tensor:
        """(n, c, 2c)."""
        S = torch.bmm(self.split(self.q), self.windows(self.k).mT, out=self.S)
        if count is not None:
            S.masked_fill_(self.place >= count, UNSEEN)
        else:
            S[0, :, : self.c] = UNSEEN
            S[-1, :, 2 * self.c - self.rest :] = UNSEEN
        self.own(S).fill_(SELF)
        return S

    def add(self, total: Tensor, part: Tensor, index: Tensor) -> None:
        """Adds to `total` (N,.) the sums that windows (n, 2c, .) hold for the tokens of a row."""
        x = part[:, self.c :].clone()
        x[:-1] += part[1:, : self.c]
        total.index_add_(0, index, x.flatten(0, 1)[: len(index)])


def _forward(
    q: Tensor, k: Tensor, v: Tensor, order: Tensor, count: Tensor | None, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """o (G,N,E); each token's largest score, and the sum of its e^(score - largest), (G,N)."""
    (G, N, E), R = v.shape, order.shape[1]
    row = _Chunks(q, v, chunk)
    o, top, z = torch.empty_like(v), q.new_empty(G, N), q.new_empty(G, N)
    ys, tops, zs = v.new_empty(R, N, E), v.new_empty(R, N), v.new_empty(R, N)
    slots = pad(order, (0, row.rest))  # (G, R, n c)
    for g in range(G):
        for r in range(R):
            row.load(q[g], k[g], v[g], slots[g, r])
            S = row.scores(None if count is None else count[g])
            most = S.amax(dim=-1, keepdim=True)
            sums = S.sub_(most).exp_().sum(dim=-1)
            y = torch.bmm(S, row.windows(row.v))
            for whole, part in ((ys, y), (tops, most), (zs, sums)):
                whole[r].index_copy_(0, order[g, r], part.view(row.n * row.c, *whole.shape[2:])[:N])
        torch.amax(tops, dim=0, out=top[g])
        scale = (tops - top[g]).exp_()
        torch.sum(scale * zs, dim=0, out=z[g])
        torch.sum(ys.mul_((scale / z[g])[..., None]), dim=0, out=o[g])
    return o, top, z


def _backward_loop(
    go: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    top: Tensor,
    z: Tensor,
    order: Tensor,
    count: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v: with A = e^(S - top) / z, dS = A (g v^T - g.o)."""
    G, N, E = v.shape
    row = _Chunks(q, v, chunk)
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    slots = pad(order, (0, row.rest))
    mean, go = (go * o).sum(dim=2) / z, go / z[..., None]
    for g in range(G):
        for r in range(order.shape[1]):
            index = slots[g, r]
            row.load(q[g], k[g], v[g], index)
            S = row.scores(None if count is None else count[g])
            A = S.sub_(row.split(top[g][index])).exp_()
            gs = go[g].index_select(0, index)
            gs[N:] = 0
            row.add(dv[g], torch.bmm(A.mT, row.split(gs)), order[g, r])
            dS = torch.bmm(row.split(gs), row.windows(row.v).mT).sub_(row.split(mean[g][index])).mul_(A)
            row.own(dS).zero_()
            dS[-1, row.c - row.rest :] = 0
            dq[g].index_add_(0, order[g, r], torch.bmm(dS, row.windows(row.k)).flatten(0, 1)[:N])
            row.add(dk[g], torch.bmm(dS.mT, row.split(row.q)), order[g, r])
    return dq, dk, dv


def _fake(q, k, v, order, count, chunk):  # type: ignore[no-untyped-def]
    return torch.empty_like(v), q.new_empty(q.shape[:2]), q.new_empty(q.shape[:2])


def _backward_fake(go, q, k, v, o, top, z, order, count, chunk):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, order, count, ctx.chunk = inputs
    ctx.save_for_backward(q, k, v, *output, order, count)


def _backward(ctx, go, gtop, gz):  # type: ignore[no-untyped-def]
    *saved, order, count = ctx.saved_tensors
    return *_gradients(go.contiguous(), *saved, order, count, ctx.chunk), None, None, None


_gradients = CustomOp("lsh_attention_backward", _backward_loop, _backward_fake)
_attention = CustomOp("lsh_attention", _forward, _fake, (_save, _backward))
