"""Rotary, LRPE and sinusoidal encodings: what they are and what they leave unchanged."""

import math

import pytest
import torch

from linnet.errors import InputError
from linnet.ops.positions import learned, reflect, rotary_angles, rotate, sinusoidal


def test_rotation_is_its_formula() -> None:
    x, theta = torch.randn(1, 1, 3, 4, dtype=torch.float64), rotary_angles(4)
    assert torch.allclose(theta, torch.tensor([1.0, 0.01]))
    y = rotate(x, theta, torch.arange(3))
    a, b = x[0, 0, 2, 2], x[0, 0, 2, 3]
    c, s = math.cos(2 * float(theta[1])), math.sin(2 * float(theta[1]))
    assert torch.allclose(y[0, 0, 2, 2:], torch.stack([a * c - b * s, b * c + a * s]))


def test_scores_depend_on_the_distance_alone() -> None:
    q, k = (torch.randn(1, 1, 1, 8, dtype=torch.float64) for _ in range(2))
    u = torch.nn.functional.normalize(torch.randn(8, dtype=torch.float64), dim=0)
    theta = rotary_angles(8).double()

    def score(t: int, s: int) -> torch.Tensor:
        return (rotate(reflect(q, u), theta, torch.tensor([t])) * rotate(reflect(k, u), theta, torch.tensor([s]))).sum()

    assert torch.allclose(score(5, 2), score(103, 100))
    assert torch.allclose(score(7, 7), (q * k).sum())  # the reflection is orthogonal


def test_far_positions_keep_their_precision() -> None:
    x, theta = torch.ones(1, 1, 1, 2), torch.tensor([1.0])
    t = 1_000_003
    y = rotate(x, theta, torch.tensor([t]))
    exact = torch.tensor([math.cos(t) - math.sin(t), math.cos(t) + math.sin(t)])
    assert torch.allclose(y.flatten(), exact, atol=1e-6)


def test_rows_may_have_positions_of_their_own() -> None:
    x = torch.randn(2, 3, 5, 4)
    own = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])
    y = rotate(x, rotary_angles(4), own)
    assert torch.allclose(y[:1, :, 2:], rotate(x[:1, :, 2:], rotary_angles(4), torch.arange(3)))
    assert torch.allclose(y[1:], rotate(x[1:], rotary_angles(4), torch.arange(5)))


def test_any_strides() -> None:
    theta, t = rotary_angles(4), torch.arange(5)
    base = torch.randn(2, 3, 5, 9)
    for x in (base[..., 1:5], base[..., 1:9:2], base[..., :4].transpose(1, 2)[:, :5].transpose(1, 2)):
        assert torch.equal(rotate(x, theta, t), rotate(x.contiguous(), theta, t))


def test_sinusoidal_is_a_sine_half_and_a_cosine_half() -> None:
    table = sinusoidal(torch.arange(4), 6)
    assert table.shape == (4, 6)
    assert torch.allclose(table[:, 0], torch.arange(4.0).sin()) and torch.allclose(table[:, 3], torch.arange(4.0).cos())
    assert torch.allclose(table[:, 2], (torch.arange(4.0) / 10000).sin())
    assert sinusoidal(torch.arange(2), 5)[:, 4].tolist() == [0, 0]


def test_learned_positions_are_rows_of_a_table() -> None:
    table = torch.randn(6, 3)
    assert torch.equal(learned(torch.arange(4), table, first=2), table[2:])
    assert torch.equal(learned(torch.tensor([[0, 0, 1]]), table, first=2), table[[2, 2, 3]][None])
    with pytest.raises(InputError, match="5 tokens: this model has 4"):
        learned(torch.arange(5), table, first=2)
