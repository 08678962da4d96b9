"""Features and SRMS computed inside the CPU kernels equal those of PyTorch in float64."""

import random
from importlib import import_module

import pytest
import torch
from torch import Tensor

import linnet
from linnet.ops.backend import no_cpu_backend
from linnet.ops.cpu import arguments
from linnet.ops.features import EluFeatures
from linnet.ops.linear import attend_linearly
from linnet.ops.masks import layout_of_masks
from linnet.ops.positions import rotary_position_angles
from linnet.ops.rms import srms
from linnet.ops.rules import LinearRule
from tests.ops.cases import MASKS, grads, key_mask, relative, segments

pytestmark = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")
WIDTHS = [(8, 8), (16, 12), (10, 33), (64, 64), (70, 20), (256, 40)]


def angles(kind: str, D: int) -> list[Tensor]:
    """theta and u, as far as this kind of positions has them."""
    theta, u = (
        rotary_position_angles(D) + 0.1 * torch.rand(D // 2),
        torch.nn.functional.normalize(torch.randn(D), dim=0),
    )
    return {"none": [], "rope": [theta], "lrpe": [theta, u]}[kind]


def trial(N: int, phi: str, kind: str, causal: bool, normalize: bool, mask: str | None, packed: bool) -> None:
    """Values, states and gradients, of theta too, from the same numbers."""
    B, H, (D, E) = random.choice([1, 2, 3]), random.choice([1, 2, 5]), random.choice(WIDTHS)
    leaves = [torch.randn(B, N, H, width).transpose(1, 2) for width in (D, D, E)]
    stateful = causal and random.random() < 0.5
    state = [torch.randn(B, H, D, E), torch.rand(B, H, D)][: 1 + normalize] if stateful else []
    how = angles(kind, D)
    where = layout_of_masks(B, N, key_mask(mask, B, N), segments(B, N) if packed else None, torch.device("cpu"))
    position = where.position + random.choice([0, 20])
    results = []
    for dtype in (torch.float64, torch.float32):
        inputs = [x.detach().to(dtype).requires_grad_() for x in (*leaves, *state, *how[:1])]
        after = inputs[3 : 3 + len(state)]
        turns = *inputs[3 + len(state) :], *(u.to(dtype) for u in how[1:]), None, None
        rule = LinearRule(causal, normalize, EluFeatures(phi, *turns[:2], position))
        o, kept = attend_linearly(*inputs[:3], where, rule, tuple(after) or None)
        out = [x.double() for x in (o, *(kept if causal or not packed else ()))]
        results.append([*out, *grads(out, inputs)])
    least = 0.1 * max(float(x.detach().abs().max()) for x in results[0])
    for theirs, ours in zip(*results, strict=True):
        error = float((ours - theirs).detach().abs().max())
        assert error <= 2e-5 * max(float(theirs.detach().abs().max()), least)


@pytest.mark.parametrize("phi", ["elu", "1+elu"])
@pytest.mark.parametrize("kind", ["none", "rope", "lrpe"])
@pytest.mark.parametrize("causal", [True, False])
def test_equals_torch(phi: str, kind: str, causal: bool) -> None:
    random.seed(0)
    for mask in MASKS:
        for packed in (False, True):
            trial(random.choice([1, 33, 100]), phi, kind, causal, phi == "1+elu" and kind == "none", mask, packed)


@pytest.mark.parametrize("seed", range(20))
def test_fuzz(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random shapes and switches, threads and spans."""
    random.seed(seed)
    torch.manual_seed(seed)
    monkeypatch.setattr(arguments, "LONG", 32)
    monkeypatch.setattr(arguments, "SMALL", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(random.choice([1, 2, 5]))
    try:
        choices = random.choice(["elu", "1+elu"]), random.choice(["none", "rope", "lrpe"])
        flags = random.random() < 0.5, False, random.choice(MASKS), random.random() < 0.5
        trial(random.randint(1, 300), *choices, *flags)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e15])
def test_srms(scale: float) -> None:
    """Over the last axis and over the merged heads, of any strides, at 0 too."""
    for shape, dim in (((3, 50, 40), -1), ((2, 5, 30, 9), (1, 3)), ((7,), -1)):
        x = (torch.randn(shape) * scale).requires_grad_()
        with torch.no_grad():
            x[..., :1] = 0
            x[:1] = 0 if x.dim() > 1 else x[:1]
        for view in (x, x.transpose(0, -2) if x.dim() > 1 and dim == -1 else x):
            results = []
            for dtype in (torch.float64, torch.float32):
                y = srms(view.to(dtype), dim)
                (dx,) = torch.autograd.grad((y * y.detach().cos()).sum(), x, retain_graph=True)
                results.append([y.double(), dx.double()])
            assert relative(results[1][0], results[0][0]) < 1e-5
            assert float((results[1][1] - results[0][1]).abs().max()) <= 1e-5 * float(results[0][1].abs().max())


def test_srms_keeps_its_output_only() -> None:
    x, kept = torch.randn(2, 4, 30, 16, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = srms(x, (1, 3))
    assert {t.data_ptr() for t in kept if t.numel() == x.numel()} == {y.data_ptr()}
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("causal", [True, False])
def test_a_layer_of_norm_keeps_no_more_than_one_of_softmax(causal: bool) -> None:
    """Bytes that wait for the backward pass: inputs of the two projections, and q, k, v."""
    sizes = {}
    for name in ("norm", "softmax", "elu"):
        mixer, kept = linnet.create_mixer(name, width=128, heads=4, causal=causal), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t) or t, lambda t: t):
            mixer(torch.randn(2, 512, 128, requires_grad=True))
        sizes[name] = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}.values())
    assert max(sizes["norm"], sizes["elu"]) <= 1.05 * sizes["softmax"]


def test_operators_are_declared_rightly() -> None:
    q, k, v = (torch.randn(2, 2, 40, 8, requires_grad=True) for _ in range(3))
    theta, u = angles("lrpe", 8)
    inputs = q, k, v, None, None, None, None, True, False, "elu", theta.requires_grad_(), u, torch.arange(40)
    tests = "test_schema", "test_faketensor", "test_autograd_registration"
    import_module("linnet.ops.cpu.linear")  # these declare them; otherwise the first use does
    import_module("linnet.ops.cpu.norm")
    torch.library.opcheck(torch.ops.linnet.cpu_linear.default, inputs, test_utils=tests)
    torch.library.opcheck(torch.ops.linnet.cpu_srms.default, (q, 1e-8), test_utils=tests)


def test_angles_without_positions_turn_nothing() -> None:
    """Their gradient is 0, not whatever was in memory."""
    q, k, v = torch.randn(3, 1, 2, 20, 8)
    theta = rotary_position_angles(8).requires_grad_()
    where = layout_of_masks(1, 20, None, None, q.device)
    o, _ = attend_linearly(q.requires_grad_(), k, v, where, LinearRule(True, features=EluFeatures("elu", theta)))
    assert torch.equal(o, attend_linearly(q, k, v, where, LinearRule(True, features=EluFeatures("elu")))[0])
    (slope,) = torch.autograd.grad(o.sum(), theta)
    assert not slope.any()
