"""Nystromformer: landmarks of real tokens, a pseudo-inverse that converges, and softmax on short rows."""

import pytest
import torch

import linnet
from linnet.attention.nystromformer import nystrom_landmarks, nystrom_segments
from linnet.ops.pseudo_inverse import pseudo_inverse
from linnet.testing import check_attention, contract_difference


@pytest.mark.parametrize("options", [{"landmarks": 16}, {"landmarks": 1}, {"landmarks": 63, "steps": 2}])
def test_contract(options: dict) -> None:
    check_attention("nystromformer", causal=False, options=options)


def test_the_pseudo_inverse_converges() -> None:
    """It converges to torch's; for a rank-deficient matrix, until rounding errors outside its range grow."""
    A = torch.randn(2, 3, 12, 12, dtype=torch.float64).softmax(dim=-1)
    low = torch.rand(2, 3, 12, 4, dtype=torch.float64) @ torch.rand(2, 3, 4, 12, dtype=torch.float64)
    for x, steps in ((A, (2, 6, 12, 20)), (low, (2, 4, 8, 12))):
        exact = torch.linalg.pinv(x, rtol=1e-10)
        errors = [contract_difference(pseudo_inverse(x, n), exact) for n in steps]
        assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-8
        Z = pseudo_inverse(x, steps[-1])
        assert contract_difference(x @ Z @ x, x) < 1e-8 and contract_difference(Z @ x @ Z, Z) < 1e-8
    assert not pseudo_inverse(torch.zeros(1, 3, 3), 6).any()


def test_a_step_changes_singular_values_as_documented() -> None:
    s = torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)
    x = pseudo_inverse(s.diag(), 1).diagonal() * s
    start = s.square()  # the norms are 1
    assert torch.allclose(x, 1 - (1 - start) ** 3 * (4 - start) / 4)


def test_each_matrix_starts_from_its_own_norms() -> None:
    A = torch.rand(4, 2, 6, 6)
    scaled = A * torch.tensor([1.0, 10, 100, 1e4])[:, None, None, None]
    assert torch.allclose(pseudo_inverse(scaled, 3)[0], pseudo_inverse(A, 3)[0])


def test_segments_are_even_and_of_real_tokens_only() -> None:
    real = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0], [1, 0, 1, 0, 0, 0, 0, 0], [1] * 8, [0] * 8]).bool()
    own, sizes = nystrom_segments(real, 3)
    assert sizes.tolist() == [[2, 2, 1], [1, 1, 0], [3, 3, 2], [0, 0, 0]]
    assert own[0][real[0]].tolist() == [0, 0, 1, 1, 2]
    x = torch.arange(8.0).expand(4, 8)[:, None, :, None] * real[:, None, :, None]
    assert nystrom_landmarks(x, own, sizes)[0, 0, :, 0].tolist() == [1.5, 4.5, 6.0]


def test_a_short_row_is_softmax_even_beside_a_long_one() -> None:
    core = linnet.create_attention("nystromformer", heads=2, head_dim=8, causal=False, landmarks=16)
    softmax = linnet.create_attention("softmax", heads=2, head_dim=8, causal=False)
    q, k, v = torch.randn(3, 2, 2, 40, 8)
    assert (
        contract_difference(core(*(x[:, :, :16] for x in (q, k, v))), softmax(*(x[:, :, :16] for x in (q, k, v))))
        < 1e-6
    )
    real = torch.ones(2, 40, dtype=torch.bool)
    real[0, 9:] = False
    both = core(q, k, v, key_mask=real)
    assert contract_difference(both[:1, :, :9], softmax(*(x[:1, :, :9] for x in (q, k, v)))) < 1e-6
    assert contract_difference(both[1:], core(q[1:], k[1:], v[1:])) < 1e-5
    assert contract_difference(both[1:], softmax(q[1:], k[1:], v[1:])) > 0.01


def test_repeated_tokens_are_rebuilt_exactly() -> None:
    """If all tokens of a segment are equal, they are their own landmarks, so the method is exact."""
    tokens = torch.randn(3, 1, 2, 8, 8, dtype=torch.float64)
    q, k, v = tokens.repeat_interleave(5, dim=3)
    core = linnet.create_attention("nystromformer", heads=2, head_dim=8, causal=False, landmarks=8, steps=30)
    softmax = linnet.create_attention("softmax", heads=2, head_dim=8, causal=False)
    assert contract_difference(core(q, k, v), softmax(q, k, v)) < 1e-6
