"""Mixed chunk attention: equal to its formula in values and gradients, for chunks of any size and a short last one."""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from linnet.ops.chunked_relu import chunked_relu_attention


def formula(near_q: Tensor, far_q: Tensor, near_k: Tensor, far_k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """(relu(q k^T + b)^2 of the past inside a chunk + far_q far_k^T of earlier chunks) v."""
    C, t = (len(bias) + 1) // 2, torch.arange(v.shape[1])
    own = t // C
    same, earlier = own[:, None] == own, own[:, None] > own
    distance = (t[:, None] - t).clamp(1 - C, C - 1)
    near = (near_q @ near_k.mT + bias[C - 1 - distance]).relu().square()
    near = torch.where(same & (t[:, None] >= t), near, 0)
    return (near + torch.where(earlier, far_q @ far_k.mT, 0)) @ v


def inputs(N: int, C: int) -> list[Tensor]:
    torch.manual_seed(N)
    shapes = *[(2, N, 5)] * 4, (2, N, 3), (2 * C - 1,)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize(("N", "C"), [(1, 1), (7, 7), (24, 8), (30, 8), (9, 1)])
def test_values_and_gradients_are_those_of_the_formula(N: int, C: int) -> None:
    given = inputs(N, C)
    o, expected = chunked_relu_attention(*given), formula(*given)
    toward = torch.randn_like(o)
    torch.testing.assert_close(o, expected, rtol=1e-12, atol=1e-12 * float(expected.detach().abs().max()))
    found, right = (torch.autograd.grad(y, given, toward) for y in (o, expected))
    for a, b in zip(found, right, strict=True):
        assert float((a - b).abs().max()) <= 1e-12 * float(b.abs().max())


def test_only_the_inputs_are_kept_for_the_backward_pass() -> None:
    N, C, kept = 600, 8, []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        chunked_relu_attention(*inputs(N, C))
    assert sum(kept) == 2 * N * (4 * 5 + 3) + 2 * C - 1


def test_operations_are_counted() -> None:
    N, C = 24, 8
    given = inputs(N, C)
    with FlopCounterMode(display=False) as counter:
        chunked_relu_attention(*given).sum().backward()
    forward = 2 * 2 * N * (C * (5 + 3) + 2 * 5 * 3)
    backward = 2 * 2 * N * (C * (3 * 5 + 2 * 3) + 5 * 5 * 3)
    assert counter.get_total_flops() == forward + backward
