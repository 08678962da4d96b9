"""Dropout: what it drops and keeps, its gradient, its seed; the kernel under a compiler and at any size."""

import pytest
import torch

from linnet.models.dropout import Dropout
from linnet.ops.backend import no_cpu_backend
from linnet.ops.cpu import dropout as on_cpu
from linnet.ops.cpu.arguments import SMALL
from linnet.ops.dropout import dropout
from linnet.ops.hashing import hash_coordinates

needs_kernels = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")


def test_a_share_is_dropped_and_the_rest_is_stretched() -> None:
    x = torch.full((400, 1000), 3.0)
    for p in (0.05, 0.1, 0.5, 0.9):
        y = dropout(x, p)
        kept = y != 0
        torch.testing.assert_close(y[kept], torch.full_like(y[kept], 3 / (1 - p)))
        assert abs(float(kept.float().mean()) - (1 - p)) < 0.004
        for axis in (0, 1):  # rows and columns lose as much as a fair coin would take
            spread = kept.float().mean(dim=axis).std() / (p * (1 - p) / x.shape[axis]) ** 0.5
            assert 0.85 < float(spread) < 1.15
    assert dropout(x, 0.0).equal(x)


def test_seeds() -> None:
    """The same seed drops the same entries; each call drops different ones."""
    x = torch.randn(50, 64)
    torch.manual_seed(1)
    first, second = dropout(x, 0.3), dropout(x, 0.3)
    torch.manual_seed(1)
    assert dropout(x, 0.3).equal(first)
    assert not first.equal(second)


def test_gradient_is_of_what_was_kept() -> None:
    for x in (torch.randn(7, 33), torch.randn(5, 40)[:, 3:30], torch.randn(8, 6).mT, torch.randn(1, 9).expand(4, 9)):
        x = x.clone() if x.stride(0) == 0 else x
        y = dropout(x.requires_grad_(), 0.4)
        (dx,) = torch.autograd.grad(y.pow(2).sum() / 2, x)
        torch.testing.assert_close(dx, y.detach() / 0.6)
        assert y.shape == x.shape


def test_evaluation_keeps_all() -> None:
    x = torch.randn(3, 5)
    module = Dropout(0.5)
    assert not module(x).equal(x)
    assert module.eval()(x) is x


@needs_kernels
def test_the_kernel_drops_what_the_definition_drops() -> None:
    """M50, at the edges of vectors and of sheets of 65,536 numbers, on one thread or more."""
    for n in (1, 15, 16, 17, 65536, 65537, SMALL + 100_003):
        for threads in (1, 2):
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                y = on_cpu.dropout(torch.ones(n), torch.tensor(7), 0.1)
            finally:
                torch.set_num_threads(before)
            place = torch.arange(n)
            kept = hash_coordinates(torch.tensor(7), place // 65536, place % 65536) >= int(0.1 * 2**32)
            assert (y != 0).equal(kept)


@needs_kernels
def test_every_backend_drops_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, in values and gradients, at the edges of sheets, and of tensors with gaps."""
    for x in (torch.randn(1), torch.randn(3, 50), torch.randn(8, 9).mT, torch.randn(65536), torch.randn(3, 43691)):
        found = []
        for backend in ("cpu", "torch", "reference"):
            monkeypatch.setenv("LINNET_BACKEND", backend)
            torch.manual_seed(5)
            leaf = x.clone().requires_grad_()
            y = dropout(leaf, 0.3)
            found.append((y, *torch.autograd.grad(y.sum(), leaf), torch.rand(1)))  # the generator stands alike, too
        for other in found[1:]:
            assert all(a.equal(b) for a, b in zip(found[0], other, strict=True))


def test_all_may_be_dropped() -> None:
    for dtype in (torch.float32, torch.float64):
        assert not dropout(torch.ones(1000, dtype=dtype), 1.0).any()


def test_negated_views() -> None:
    x = torch.ones(100, requires_grad=True)
    y = dropout(torch._neg_view(x), 0.5)
    assert set(y.tolist()) == {0.0, -2.0}
    assert torch.autograd.grad(y, x, torch._neg_view(torch.ones(100)))[0].equal(-y)


def test_the_seed_is_drawn_on_the_device_of_the_numbers() -> None:
    x = torch.ones(100)
    torch.manual_seed(1)
    expected = dropout(x, 0.5)
    torch.manual_seed(1)
    with torch.device("meta"):
        assert dropout(x, 0.5).equal(expected)


@needs_kernels
def test_dropped_values_may_be_anything() -> None:
    x = torch.full((1000,), torch.inf)
    y = dropout(x, 0.5)
    assert ((y == 0) | (y == torch.inf)).all()


@needs_kernels
def test_the_kernel_is_an_operator() -> None:
    x, seed = torch.randn(3, 20, requires_grad=True), torch.tensor(3)
    tests = "test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic"
    torch.library.opcheck(torch.ops.linnet.cpu_dropout.default, (x, seed, 0.1), test_utils=tests)


def test_other_types_and_compilers() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        assert dropout(torch.ones(100, dtype=dtype), 0.5).dtype is dtype
    compiled = torch.compile(dropout, fullgraph=True, backend="aot_eager")
    y = compiled(torch.ones(1000), 0.5)
    assert set(y.unique().tolist()) == {0.0, 2.0}
