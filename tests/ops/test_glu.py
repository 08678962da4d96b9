"""The gated unit: its kernel against float64, in values and gradients, at the edges and under a compiler."""

import random
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from linnet.errors import InputError
from linnet.ops.backend import no_cpu_backend
from linnet.ops.cpu import glu as on_cpu
from linnet.ops.glu import ACTIVATIONS, glu, silu_gate

FUNCTIONS = {"silu": silu, "gelu": gelu, "relu": relu, "identity": lambda x: x}
needs_kernels = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")


def definition(x: Tensor, act: str) -> Tensor:
    w = x.shape[-1] // 2
    return FUNCTIONS[act](x[..., :w]) * x[..., w:]


def both(x: Tensor, act: str, toward: Tensor) -> list[list[Tensor]]:
    """y and dx: of the definition in float64, and of the op in float32."""
    results = []
    for f, dtype in ((definition, torch.float64), (glu, torch.float32)):
        y = f(x.to(dtype), act)
        (dx,) = torch.autograd.grad(y, x, toward.to(dtype))
        results.append([y.detach(), dx])
    return results


def trial(x: Tensor, act: str) -> None:
    toward = torch.randn(*x.shape[:-1], x.shape[-1] // 2)
    for right, ours in zip(*both(x.requires_grad_(), act, toward), strict=True):
        torch.testing.assert_close(ours.double(), right.double(), rtol=2e-6, atol=5e-6)


@pytest.mark.parametrize("act", FUNCTIONS)
@pytest.mark.parametrize("width", [1, 3, 4, 7, 8, 15, 16, 17, 31, 85, 256])
def test_values_and_gradients(act: str, width: int) -> None:
    for shape in ((), (1,), (5,), (2, 3), (2, 3, 4)):
        trial(3 * torch.randn(*shape, 2 * width), act)


@pytest.mark.parametrize("act", FUNCTIONS)
def test_any_strides(act: str) -> None:
    """Slices of a wider tensor, other orders of axes, a row that repeats, a gradient of stride 0."""
    x = torch.randn(6, 5, 40)
    for view in (x[..., 3:37], x[::2], x.transpose(0, 1), x.mT[..., :4], x[:1].expand(3, 5, 40), x[0, 0].expand(7, 40)):
        trial(view.detach(), act)
    leaf = x.clone().requires_grad_()
    glu(leaf, act).sum().backward()
    right = x.double().requires_grad_()
    definition(right, act).sum().backward()
    torch.testing.assert_close(leaf.grad.double(), right.grad, rtol=2e-6, atol=5e-6)
    negated = torch._neg_view(x)
    torch.testing.assert_close(glu(negated, act), definition(-x, act), rtol=2e-6, atol=5e-6)


@needs_kernels
def test_silu_is_accurate_relative_to_its_value() -> None:
    """Over its whole range, also where it is nearly 0 or nearly the identity."""
    a = torch.cat([torch.linspace(-87, 88, 200001), torch.logspace(-30, 30, 2001)])
    ours = glu(torch.stack([a, torch.ones_like(a)], dim=1), "silu")[:, 0].double()
    right = silu(a.double())
    assert float(((ours - right).abs() / right.abs().clamp(min=1e-35)).max()) < 1e-6
    assert float(glu(torch.tensor([-1e5, 1.0]), "silu")) == 0


@needs_kernels
@pytest.mark.parametrize("act", on_cpu.ACTS)
def test_non_finite_inputs_propagate_as_in_torch(act: str) -> None:
    odd = torch.tensor([0.0, -0.0, 1.0, -1.0, 200.0, -200.0, 1e30, -1e30, torch.inf, -torch.inf, torch.nan])
    a, b, g = torch.cartesian_prod(odd, odd, odd).T
    x = torch.stack([a, b], dim=1).requires_grad_()
    results = []
    for f in (definition, glu):
        y = f(x, act)
        (dx,) = torch.autograd.grad(y, x, g[:, None])
        results.append(torch.cat([y.detach(), dx], dim=1))
    torch.testing.assert_close(results[1], results[0], rtol=2e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8), (4, 0)])
def test_empty(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, requires_grad=True)
    y = glu(x, "silu")
    assert y.shape == (*shape[:-1], shape[-1] // 2)
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == shape


def test_an_odd_width_is_one_line() -> None:
    with pytest.raises(InputError, match="must be even") as error:
        glu(torch.randn(2, 5), "silu")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_are_torch_s_own(dtype: torch.dtype) -> None:
    x = torch.randn(3, 20).to(dtype)
    for act in ACTIVATIONS:
        assert torch.equal(glu(x, act), definition(x, act))


@needs_kernels
@pytest.mark.parametrize("seed", range(20))
def test_fuzz(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random shapes, strides and threads; the result does not depend on the threads."""
    random.seed(seed)
    torch.manual_seed(seed)
    monkeypatch.setattr(on_cpu, "SMALL", 0)
    act, threads = random.choice(on_cpu.ACTS), torch.get_num_threads()
    shape = random.randint(1, 40), random.randint(1, 9), 2 * random.randint(1, 150)
    x = torch.randn(shape) * random.choice([0.1, 1, 9])
    x = x.transpose(0, 1) if random.random() < 0.5 else x
    one = glu(x, act)
    torch.set_num_threads(random.choice([2, 5]))
    try:
        assert torch.equal(glu(x, act), one)
        trial(x.detach(), act)
    finally:
        torch.set_num_threads(threads)


@needs_kernels
def test_compiles() -> None:
    """A compiler and torch.func see plain operations, and the operators below are declared correctly."""
    x = torch.randn(4, 6, 34)
    for act in FUNCTIONS:
        compiled = torch.compile(glu, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, act), glu(x, act))
        per_row = torch.func.vmap(torch.func.grad(lambda row, act=act: glu(row, act).sum()))(x)
        leaf = x.clone().requires_grad_()
        glu(leaf, act).sum().backward()
        torch.testing.assert_close(per_row, leaf.grad)
        _, tangent = torch.func.jvp(lambda x, act=act: glu(x, act), (x,), (torch.ones_like(x),))
        assert tangent.abs().sum() > 0
    tests = "test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic"
    for act in on_cpu.ACTS:
        torch.library.opcheck(torch.ops.linnet.cpu_glu.default, (x[0].requires_grad_(), act), test_utils=tests)


@needs_kernels
def test_only_its_input_is_in_memory_for_the_backward_pass() -> None:
    x, kept = torch.randn(3, 50, 34, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        glu(x, "silu")
    assert {t.untyped_storage().data_ptr() for t in kept} == {x.untyped_storage().data_ptr()}


PEAK = """
import resource, torch
from linnet.ops.glu import glu
torch.set_num_threads(1)
def run(rows):
    x = torch.randn(rows, 512, requires_grad=True)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    glu(x, "silu").backward(torch.ones(rows, 256))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
run(128)
print(run(65536) / 1024)
"""


@needs_kernels
def test_peak_memory_is_the_output_and_two_gradients() -> None:
    """64 MiB of y, 64 of its gradient and 128 of the input's."""
    out = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, timeout=120)
    assert float(out.stdout) < 1.05 * 256


def test_a_gate_is_silu_times_another_tensor_in_values_and_gradients() -> None:
    torch.manual_seed(0)
    wide = torch.randn(3, 5, 60)
    given = [wide[..., :20].requires_grad_(), wide[..., 30:50].detach().requires_grad_()]  # rows with gaps between them
    toward = torch.randn(3, 5, 20)
    o, expected = silu_gate(*given), torch.nn.functional.silu(given[0]) * given[1]
    for a, b in zip(
        (o, *torch.autograd.grad(o, given, toward)),
        (expected, *torch.autograd.grad(expected, given, toward)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
