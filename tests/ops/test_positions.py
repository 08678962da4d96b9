"""Rotary, LRPE and sinusoidal encodings: their formulas and invariants."""

import math
import random

import pytest
import torch

from linnet.errors import InputError
from linnet.ops.backend import no_cpu_backend
from linnet.ops.cpu import rotate as on_cpu
from linnet.ops.positions import (
    learned_positions,
    position_turns,
    reflect_positions,
    rotary_position_angles,
    rotate_by_position,
    sinusoidal_positions,
)


def test_rotation_is_its_formula() -> None:
    x, theta = torch.randn(1, 1, 3, 4, dtype=torch.float64), rotary_position_angles(4)
    assert torch.allclose(theta, torch.tensor([1.0, 0.01]))
    y = rotate_by_position(x, theta, torch.arange(3))
    a, b = x[0, 0, 2, 2], x[0, 0, 2, 3]
    c, s = math.cos(2 * float(theta[1])), math.sin(2 * float(theta[1]))
    assert torch.allclose(y[0, 0, 2, 2:], torch.stack([a * c - b * s, b * c + a * s]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8, torch.float32])
def test_places_that_repeat(dtype: torch.dtype) -> None:
    """Of any type of number, and wherever torch puts new tensors."""
    theta, position = rotary_position_angles(8), torch.tensor([[0, 1, 2, 2], [5, 3, 3, 3]])
    angle = position[..., None].double() * theta.double()
    with torch.device("meta"):
        turns = position_turns(theta, position.to(dtype))
    assert turns.equal(torch.stack((angle.cos(), angle.sin()), dim=-1))


def test_scores_depend_on_the_distance_alone() -> None:
    q, k = (torch.randn(1, 1, 1, 8, dtype=torch.float64) for _ in range(2))
    u = torch.nn.functional.normalize(torch.randn(8, dtype=torch.float64), dim=0)
    theta = rotary_position_angles(8).double()

    def score(t: int, s: int) -> torch.Tensor:
        return (
            rotate_by_position(reflect_positions(q, u), theta, torch.tensor([t]))
            * rotate_by_position(reflect_positions(k, u), theta, torch.tensor([s]))
        ).sum()

    assert torch.allclose(score(5, 2), score(103, 100))
    assert torch.allclose(score(7, 7), (q * k).sum())  # the reflection is orthogonal


def test_far_positions_keep_their_precision() -> None:
    x, theta = torch.ones(1, 1, 1, 2), torch.tensor([1.0])
    t = 1_000_003
    y = rotate_by_position(x, theta, torch.tensor([t]))
    exact = torch.tensor([math.cos(t) - math.sin(t), math.cos(t) + math.sin(t)])
    assert torch.allclose(y.flatten(), exact, atol=1e-6)


def test_rows_may_have_positions_of_their_own() -> None:
    x = torch.randn(2, 3, 5, 4)
    own = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])
    y = rotate_by_position(x, rotary_position_angles(4), own)
    assert torch.allclose(y[:1, :, 2:], rotate_by_position(x[:1, :, 2:], rotary_position_angles(4), torch.arange(3)))
    assert torch.allclose(y[1:], rotate_by_position(x[1:], rotary_position_angles(4), torch.arange(5)))


def test_any_strides() -> None:
    theta, t = rotary_position_angles(4), torch.arange(5)
    base = torch.randn(2, 3, 5, 9)
    for x in (base[..., 1:5], base[..., 1:9:2], base[..., :4].transpose(1, 2)[:, :5].transpose(1, 2)):
        assert torch.equal(rotate_by_position(x, theta, t), rotate_by_position(x.contiguous(), theta, t))


def test_sinusoidal_is_a_sine_half_and_a_cosine_half() -> None:
    table = sinusoidal_positions(torch.arange(4), 6)
    assert table.shape == (4, 6)
    assert torch.allclose(table[:, 0], torch.arange(4.0).sin()) and torch.allclose(table[:, 3], torch.arange(4.0).cos())
    assert torch.allclose(table[:, 2], (torch.arange(4.0) / 10000).sin())
    assert sinusoidal_positions(torch.arange(2), 5)[:, 4].tolist() == [0, 0]


def test_learned_positions_are_rows_of_a_table() -> None:
    table = torch.randn(6, 3)
    assert torch.equal(learned_positions(torch.arange(4), table, first=2), table[2:])
    assert torch.equal(learned_positions(torch.tensor([[0, 0, 1]]), table, first=2), table[[2, 2, 3]][None])
    with pytest.raises(InputError, match="5 tokens: this model has 4"):
        learned_positions(torch.arange(5), table, first=2)


@pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")
@pytest.mark.parametrize("seed", range(20))
def test_fuzz(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel equals float64 in values and gradients, for any width, strides, positions and threads."""
    random.seed(seed)
    torch.manual_seed(seed)
    monkeypatch.setattr(on_cpu, "SMALL", 0)
    B, H, N, D = (random.choice(sizes) for sizes in ([1, 3], [1, 2, 5], [1, 7, 40], [2, 6, 16, 34, 64]))
    x = random.choice([torch.randn(B, H, N, D), torch.randn(B, N, H, D).transpose(1, 2), torch.randn(B, H, D, N).mT])
    position = random.choice([torch.arange(N), torch.randint(5000, (B, N)), torch.randint(9, (B, 1)).expand(B, N)])
    theta, toward, threads = rotary_position_angles(D), torch.randn(x.shape), torch.get_num_threads()
    x.requires_grad_()
    torch.set_num_threads(random.choice([1, 2, 5]))
    try:
        results = []
        for dtype in (torch.float64, torch.float32):
            y = rotate_by_position(x.to(dtype), theta, position)
            results.append([y, *torch.autograd.grad(y, x, toward.to(dtype))])
    finally:
        torch.set_num_threads(threads)
    for right, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, right.float(), rtol=1e-5, atol=1e-6)


def test_learned_angles_have_their_gradient() -> None:
    x, theta = torch.randn(2, 3, 5, 4), rotary_position_angles(4)
    results = []
    for dtype in (torch.float64, torch.float32):
        leaf = theta.to(dtype).requires_grad_()
        rotate_by_position(x.to(dtype), leaf, torch.arange(5)).pow(3).sum().backward()
        results.append(leaf.grad.float())
    assert results[0].abs().min() > 1e-3
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_compiles() -> None:
    x, t = torch.randn(2, 3, 5, 8, requires_grad=True), torch.arange(5)
    plain = rotate_by_position(x, rotary_position_angles(8), t)
    compiled = torch.compile(rotate_by_position, fullgraph=True, backend="aot_eager")(x, rotary_position_angles(8), t)
    torch.testing.assert_close(compiled, plain)
    (first,) = torch.autograd.grad(plain.pow(2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)  # a rotation keeps lengths: the gradient is 2 x
    torch.testing.assert_close(second, torch.full_like(x, 2))
    if not no_cpu_backend():
        tests = "test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic"
        turn = torch.randn(5, 8)
        torch.library.opcheck(torch.ops.linnet.cpu_rotate.default, (x, turn, False), test_utils=tests)


def test_sinusoidal_positions_of_a_float64_model_are_float64():
    position = torch.tensor([0, 5, 4000])
    wide, narrow = sinusoidal_positions(position, 8, torch.float64), sinusoidal_positions(position, 8, torch.bfloat16)
    assert wide.dtype == torch.float64 and narrow.dtype == torch.float32
    angle = position[:, None].double() * 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 3)
    torch.testing.assert_close(wide, torch.cat([angle.sin(), angle.cos()], dim=1), rtol=1e-12, atol=1e-12)


def test_sinusoidal_positions_of_a_float64_model_are_exact() -> None:
    places = torch.tensor([3000])
    exact = torch.sin(places.double() * 10000.0 ** -(torch.arange(4, dtype=torch.float64) / 3))
    wide, plain = (sinusoidal_positions(places, 8, dtype)[0, :4] for dtype in (torch.float64, torch.float32))
    assert wide.dtype == torch.float64 and float((wide - exact).abs().max()) < 1e-11
    assert plain.dtype == torch.float32 and float((plain - exact).abs().max()) > 1e-6
