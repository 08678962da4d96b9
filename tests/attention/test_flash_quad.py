"""FLASH-quad: its equation token by token, its gate, and a division independent of padding and length."""

import math

import pytest
import torch
from torch.nn.functional import linear, silu

import linnet
from linnet.attention.flash_quad import DistanceBias
from linnet.errors import InputError


def turned(x: torch.Tensor, position: int) -> torch.Tensor:
    """Rotary positions, pair by pair."""
    out, D = x.clone(), len(x)
    for i in range(0, D, 2):
        angle = position * 10000 ** (-i / D)
        c, s = math.cos(angle), math.sin(angle)
        out[i], out[i + 1] = c * x[i] - s * x[i + 1], c * x[i + 1] + s * x[i]
    return out


@pytest.mark.parametrize("causal", [True, False])
def test_the_unit_is_its_equation(causal: bool) -> None:
    N, masked = 7, 2
    mixer = linnet.create_mixer("flash_quad", width=6, heads=2, causal=causal, key_width=4, reach=3).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    core, bias = mixer.core, mixer.core.bias
    x = torch.randn(1, N, 6, dtype=torch.float64)
    real = torch.ones(1, N, dtype=torch.bool)
    real[0, masked] = False
    W, b = mixer.enter.weight, mixer.enter.bias
    v, z = silu(linear(x[0], W[:12], b[:12])), silu(linear(x[0], W[12:], b[12:]))
    u = silu(linear(x[0], mixer.gate.weight, mixer.gate.bias))
    rows = []
    for t in range(N):
        seen = [s for s in range(N) if s != masked and (s <= t or not causal)]
        q, o = turned(core.gamma[0] * z[t] + core.beta[0], t), torch.zeros(12, dtype=torch.float64)
        for s in seen:
            k = turned(core.gamma[1] * z[s] + core.beta[1], s)
            near = bias.table[t - s + 2] if abs(t - s) < 3 else 0
            far = turned(bias.a, t) @ turned(bias.b, s)
            o = o + (q @ k / len(seen) + near + far).relu() ** 2 * v[s]
        rows.append(linear(u[t] * o, mixer.out.weight, mixer.out.bias))
    y = mixer(x, key_mask=real)
    assert y.abs().max() > 0.01
    torch.testing.assert_close(y[0], torch.stack(rows), rtol=1e-6, atol=1e-8)  # angles of rope are float32


def test_biases_are_learned_within_reach_only() -> None:
    bias = DistanceBias(4, 2)
    with torch.no_grad():
        bias.a.zero_()
    distance = torch.arange(-9, 10)
    b = bias(distance, torch.float32)
    assert torch.equal(b[6:13], bias.table) and not b[:6].any() and not b[13:].any()
    torch.testing.assert_close(bias.matrix(3, torch.float32)[2, 0], bias.table[5])


def test_heads_are_accepted_and_unused() -> None:
    shapes = [
        [p.shape for p in linnet.create_mixer("flash_quad", width=12, heads=heads, causal=True).parameters()]
        for heads in (1, 3)
    ]
    assert shapes[0] == shapes[1]
    assert linnet.create_mixer("flash_quad", width=12, heads=3, causal=True).core.heads == 1


def test_widths() -> None:
    mixer = linnet.create_mixer("flash_quad", width=12, heads=1, causal=True, key_width=10, value_width=7)
    assert mixer.weights(torch.randn(2, 5, 12)).shape == (2, 1, 5, 5)
    assert (mixer.gate.out_features, mixer.core.head_dim, mixer.width) == (7, 10, 12)
    with pytest.raises(InputError, match=r"flash_quad\.key_width is 5"):
        linnet.create_mixer("flash_quad", width=12, heads=1, causal=True, key_width=5)
    with pytest.raises(InputError, match="width 12"):
        mixer(torch.randn(2, 5, 7))
