"""Kernelized attention: the Gaussian itself, without a row normalizer, and in linear memory."""

import pytest
import torch

import linnet
from linnet.attention.kernelized import kernelized_attention, kernelized_weights
from linnet.testing import contract_difference


def test_the_kernel_is_gaussian_in_the_width_of_the_head() -> None:
    q, k = torch.randn(2, 1, 1, 5, 9, dtype=torch.float64)
    core = linnet.create_attention("kernelized", heads=1, head_dim=9, causal=False)
    expected = torch.tensor([[float(torch.exp(-(a - b).square().sum() / 6)) for b in k[0, 0]] for a in q[0, 0]])
    assert torch.allclose(core.weights(q, k)[0, 0].float(), expected)
    assert torch.allclose(core.weights(q, q).diagonal(dim1=2, dim2=3), torch.ones(1, 1, 5, dtype=torch.float64))


def test_rows_are_not_normalized() -> None:
    core = linnet.create_attention("kernelized", heads=1, head_dim=4, causal=False)
    q, k, v = torch.randn(3, 1, 1, 30, 4)
    twice = core(*(torch.cat([x, x], dim=2) for x in (q, k, v)))
    assert contract_difference(twice[:, :, :30], 2 * core(q, k, v)) < 1e-5


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("E", [1, 8, 20])
def test_the_form_without_a_matrix_is_the_kernel(scale: float, E: int) -> None:
    """Also for distant tokens, where the sum is tiny, and for values of any width."""
    q, k = scale * torch.randn(2, 2, 3, 20, 8)
    v, real = torch.randn(2, 3, 20, E), torch.rand(2, 20) > 0.3
    exact = kernelized_weights(q.double(), k.double()) * real[:, None, None] @ v.double()
    ours = kernelized_attention(q, k, v, real)
    assert ours.shape == v.shape and float((ours - exact).abs().max()) < 1e-5 * max(1.0, float(exact.abs().max()))


def test_far_tokens_weigh_nothing() -> None:
    core = linnet.create_attention("kernelized", heads=1, head_dim=4, causal=False)
    q = torch.full((1, 1, 3, 4), 50.0, requires_grad=True)
    o = core(q, -q, torch.ones(1, 1, 3, 4))
    o.sum().backward()
    assert not o.any() and not q.grad.any()
