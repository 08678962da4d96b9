"""Attention in sorted chunks: gradients by finite differences, orders that overlap, counts, forward mode refused."""

import pytest
import torch

from linnet.errors import UnsupportedError
from linnet.ops.lsh import SELF, lsh_attention


def rows(G: int, N: int, R: int, D: int = 3, E: int = 2) -> tuple[torch.Tensor, ...]:
    q, k, v = (torch.randn(G, N, width, dtype=torch.float64, requires_grad=True) for width in (D, D, E))
    order = torch.stack([torch.randperm(N) for _ in range(G * R)]).view(G, R, N)
    return q, k, v, order


def by_token(q, k, v, order, count, chunk) -> torch.Tensor:
    """Token by token, from the definition."""
    out = torch.zeros_like(v)
    for g in range(len(q)):
        for t in range(q.shape[1]):
            scores, values = [], []
            for places in order[g].tolist():
                own = places.index(t) // chunk
                for s in places[max(0, own - 1) * chunk : (own + 1) * chunk]:
                    if places.index(s) < (q.shape[1] if count is None else count[g]):
                        scores.append(q[g, t] @ k[g, s] if s != t else torch.tensor(SELF, dtype=torch.float64))
                        values.append(v[g, s])
            if scores:
                out[g, t] = torch.stack(scores).softmax(dim=0) @ torch.stack(values)
    return out


@pytest.mark.parametrize("N,chunk", [(1, 4), (4, 4), (9, 4), (12, 3), (5, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_definition_and_gradients(N: int, chunk: int, masked: bool) -> None:
    q, k, v, order = rows(2, N, 2)
    count = torch.tensor([N, (N + 1) // 2]) if masked else None
    if masked:  # masked tokens stand last in every order
        real = torch.arange(N) < count[:, None]
        order = order.gather(2, real.gather(1, order.flatten(1)).view_as(order).int().argsort(descending=True))
    else:
        real = torch.ones(2, N, dtype=torch.bool)
    ours, theirs = (fn(q, k, v, order, count, chunk) for fn in (lsh_attention, by_token))
    torch.testing.assert_close(ours[real], theirs[real])
    g = torch.randn_like(ours) * real[..., None]
    ours, theirs = (torch.autograd.grad(o, (q, k, v), g, materialize_grads=True) for o in (ours, theirs))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_finite_differences() -> None:
    q, k, v, order = rows(2, 7, 3)
    assert torch.autograd.gradcheck(lambda *x: lsh_attention(*x, order, None, 3), (q, k, v))


def test_a_token_alone_gives_its_own_value_exactly() -> None:
    q, k, v, order = (x.float() if x.is_floating_point() else x for x in rows(1, 4, 2))
    assert torch.allclose(lsh_attention(q[:, :1], k[:, :1], v[:, :1], order[:, :, :1] * 0, None, 4), v[:, :1])


def test_forward_mode_is_refused() -> None:
    q, k, v, order = rows(1, 4, 1)
    with pytest.raises(UnsupportedError, match="reverse mode"):
        torch.func.jvp(lambda x: lsh_attention(x, k, v, order, None, 2), (q,), (q,))
