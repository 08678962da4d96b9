"""The two forms of an operator agree, and unsupported transforms are refused instead of answered with 0."""

import pytest
import torch
from torch import Tensor

from linnet.errors import UnsupportedError
from linnet.ops import block_attention, exp_attention, linear_attention
from linnet.ops.backend import no_cpu_backend
from linnet.ops.rms import srms

OPS = pytest.mark.parametrize("op", [linear_attention, exp_attention])
needs_kernels = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")


def draw() -> tuple[Tensor, Tensor, Tensor]:
    q, k = torch.rand(2, 1, 2, 70, 4)
    return q, k, torch.rand(1, 2, 70, 6)


@OPS
def test_eager_calls_and_the_custom_op_give_the_same_bits(op, monkeypatch) -> None:
    results = []
    for watched in (False, True):
        monkeypatch.setattr("linnet.ops.custom_op.custom_op_is_plain", lambda *args, watched=watched: not watched)
        torch.manual_seed(0)
        inputs = [x.requires_grad_() for x in draw()]
        o = op(*inputs)
        results.append([o, *torch.autograd.grad(o.square().sum(), inputs)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@OPS
def test_a_second_derivative_is_refused_and_never_0(op) -> None:
    q, k, v = draw()
    for second in (torch.autograd.functional.hessian, lambda f, x: torch.autograd.functional.hvp(f, x, x)):
        with pytest.raises(RuntimeError, match="no autograd formula"):
            second(lambda q: op(q, k, v).square().sum(), q)
    q.requires_grad_()
    (g,) = torch.autograd.grad(op(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        torch.autograd.grad(g.square().sum() + q.square().sum(), q)


@OPS
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_vmap_and_a_trace_equal_plain_calls(op) -> None:
    q, k, v = draw()
    many = torch.stack([q, 2 * q])
    together = torch.vmap(lambda q: op(q, k, v))(many)
    assert torch.allclose(together, torch.stack([op(q, k, v) for q in many]), atol=1e-5)
    traced = torch.jit.trace(lambda q: op(q, k, v), q)
    assert torch.allclose(traced(2 * q), op(2 * q, k, v), atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("op", [linear_attention, exp_attention, block_attention])
def test_transforms_of_torch_func_differentiate_once(op) -> None:
    """`grad`, and `vmap` of it for the gradients of single samples; a second derivative is an error of one line."""
    q, k, v = torch.rand(3, 4, 1, 2, 20, 8).requires_grad_().unbind()

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return op(q, k, v, backend="cpu").square().sum()

    slopes = torch.autograd.grad(sum(map(loss, q, k, v)), (q, k, v))
    gradient = torch.func.grad(loss, argnums=(0, 1, 2))
    assert all(torch.equal(ours[0], g) for ours, g in zip(slopes, gradient(q[0], k[0], v[0]), strict=True))
    assert all(map(torch.equal, slopes, torch.vmap(gradient)(q, k, v)))
    with pytest.raises(UnsupportedError, match="second derivative"):
        torch.func.jacrev(torch.func.grad(loss))(q[0], k[0], v[0])


@needs_kernels
def test_no_kernel_answers_forward_mode_with_0() -> None:
    x = torch.rand(1, 2, 20, 8)
    with pytest.raises(UnsupportedError, match="reverse mode"):
        torch.func.jvp(lambda x: block_attention(x, x, x), (x,), (x,))
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():  # plain operations, which know their tangents
        tangent = forward_ad.unpack_dual(srms(forward_ad.make_dual(x, x.flip(3)))).tangent
    step = 1e-3 * x.flip(3)
    torch.testing.assert_close(tangent, (srms(x + step) - srms(x - step)) / 2e-3, atol=1e-3, rtol=1e-3)
