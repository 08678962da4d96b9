"""Squared ReLU attention: equal to its formula in values and gradients, and its memory does not grow with N^2."""

import pytest
import torch
from torch import Tensor

from linnet.ops.squared_relu import STRIP, squared_relu_attention


def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, causal: bool) -> Tensor:
    """relu(q k^T + b)^2 v with b_ts = bias of the distance t - s."""
    t = torch.arange(q.shape[1])
    A = (q @ k.mT + bias[len(t) - 1 - (t[:, None] - t)]).relu().square()
    return (A.tril() if causal else A) @ v


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("N", [1, 7, STRIP, STRIP + 1, 2 * STRIP + 30])
def test_values_and_gradients_are_those_of_the_formula(N: int, causal: bool) -> None:
    torch.manual_seed(N)
    shapes = (2, N, 5), (2, N, 5), (2, N, 3), (2 * N - 1,)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    o, expected = squared_relu_attention(*inputs, causal), formula(*inputs, causal)
    toward = torch.randn_like(o)
    torch.testing.assert_close(o, expected, rtol=1e-12, atol=1e-12 * float(expected.detach().abs().max()))
    found, right = (torch.autograd.grad(y, inputs, toward) for y in (o, expected))
    for a, b in zip(found, right, strict=True):
        assert float((a - b).abs().max()) <= 1e-12 * float(b.abs().max())


def test_only_the_inputs_are_kept_for_the_backward_pass() -> None:
    N, kept = 1500, []
    inputs = [torch.randn(1, N, 4, requires_grad=True) for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        squared_relu_attention(*inputs, torch.randn(2 * N - 1, requires_grad=True), True)
    assert sum(kept) == 3 * 4 * N + 2 * N - 1
