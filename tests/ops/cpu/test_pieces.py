"""Attention over pieces of the keys on the CPU kernels: equal to a masked softmax in values and gradients."""

import random

import pytest
import torch
from torch import Tensor

from linnet.errors import InputError
from linnet.ops.backend import no_cpu_backend
from linnet.ops.pieces import Pieces, piece_attention

pytestmark = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")


def visible(pieces: Pieces, B: int, H: int, N: int, K: int, real: Tensor | None) -> Tensor:
    """(B,H,N,K): which keys each query sees."""
    see = torch.zeros(B, H, N, K, dtype=torch.bool)
    spans = pieces.spans.expand(B, H, -1, -1, -1)
    for b, h, t in torch.cartesian_prod(torch.arange(B), torch.arange(H), torch.arange(N)).tolist():
        for j, (first, many) in enumerate(spans[b, h, t // pieces.unit].tolist()):
            keys = torch.arange(K)
            inside = (keys >= first) & (keys < first + many)
            if j == 0 and pieces.band is not None:
                inside &= (keys >= pieces.band[t, 0]) & (keys < pieces.band[t, 1])
            see[b, h, t] |= inside
    return see if real is None else see & real[:, None, None]


@pytest.mark.parametrize("seed", range(9))
def test_equals_a_masked_softmax(seed: int) -> None:
    random.seed(seed), torch.manual_seed(seed)
    B, H, N, K = random.choice([1, 2]), random.choice([1, 3]), random.choice([1, 37, 70]), random.choice([5, 64, 90])
    D, E = random.choice([(8, 8), (16, 12), (9, 33), (64, 64)])
    K = K if seed < 6 else 500 + K  # long rows of scores have another layout
    unit, most = random.choice([1, 8, 32, 100]), random.choice([1, 2, 4])
    edges = torch.randint(K + 1, (random.choice([1, B]), random.choice([1, H]), -(-N // unit), most + 1)).sort().values
    spans = torch.stack([edges[..., :-1], edges.diff()], dim=-1)  # pieces that do not overlap
    band = torch.randint(K + 1, (N, 2)).sort().values if seed % 2 else None
    pieces, real = Pieces(unit, spans, K, band), torch.rand(B, K) < 0.7 if seed % 3 else None
    shapes = (B, N, H, D), (B, K, H, D), (B, K, H, E)
    leaves = [torch.randn(shape).transpose(1, 2).requires_grad_() for shape in shapes]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    o = piece_attention(*leaves, real, pieces, 0.3)
    see = visible(pieces, B, H, N, K, real)
    blind = ~see.any(dim=-1, keepdim=True)
    A = (wide[0] @ wide[1].mT * 0.3).masked_fill(~(see | blind), -torch.inf).softmax(dim=-1).masked_fill(~see, 0)
    expected, toward = A @ wide[2], torch.randn(B, H, N, E)
    assert o is not None
    found = o, *torch.autograd.grad(o, leaves, toward)
    right = expected, *torch.autograd.grad(expected, wide, toward.double())
    least = 0.1 * max(float(x.detach().abs().max()) for x in right)
    for ours, theirs in zip(found, right, strict=True):
        assert float((ours - theirs).detach().abs().max()) <= 1e-5 * max(float(theirs.detach().abs().max()), least)


def test_a_masked_key_is_never_read_and_numbers_out_of_range_read_no_other_memory() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 40, 16) for _ in range(3))
    real = torch.ones(1, 40, dtype=torch.bool)
    real[0, 7] = False
    spans = torch.tensor([[0, 20], [30, 5]]).view(1, 1, 1, 2, 2)
    clean = piece_attention(q, k, v, real, Pieces(40, spans, 25), 0.25)
    k[:, :, 7] = v[:, :, 7] = torch.nan
    assert torch.equal(clean, piece_attention(q, k, v, real, Pieces(40, spans, 25), 0.25))
    for wrong in ([[-5, 20], [30, 5000]], [[10**12, 10**12], [-(10**12), 3]]):
        o = piece_attention(q, k, v, real, Pieces(40, torch.tensor(wrong).view(1, 1, 1, 2, 2), 25), 0.25)
        assert o is not None and o.isfinite().all()


def test_a_tensor_that_changed_before_the_backward_pass_is_refused() -> None:
    q, k, v = (torch.randn(1, 2, 40, 16, requires_grad=True) for _ in range(3))
    spans = torch.tensor([0, 40]).view(1, 1, 1, 1, 2)
    o = piece_attention(q, k, v, None, Pieces(40, spans, 40), 0.25)
    assert o is not None
    k.data = torch.randn(1, 2, 3, 16)
    with pytest.raises(InputError, match="k is"):
        o.sum().backward()


def test_units_that_do_not_cover_the_queries_are_refused() -> None:
    x = torch.randn(1, 2, 40, 16)
    with pytest.raises(InputError, match="spans has 1 units of 8 queries: it must cover 40"):
        piece_attention(x, x, x, None, Pieces(8, torch.tensor([0, 40]).view(1, 1, 1, 1, 2), 40), 0.25)
