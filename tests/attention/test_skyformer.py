"""Skyformer approaches the kernel that it approximates, and draws its landmarks from the real tokens."""

import pytest
import torch

import linnet
from linnet.attention.skyformer import _scramble, draw_skyformer_landmarks
from linnet.errors import InputError
from linnet.testing import check_attention, contract_difference


def error(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: float) -> float:
    exact = linnet.create_attention("kernelized", heads=4, head_dim=4, causal=False)(q, k, v)
    core = linnet.create_attention("skyformer", heads=4, head_dim=4, causal=False, **options)
    return contract_difference(core(q, k, v), exact)


@pytest.mark.parametrize("options", [{"landmarks": 16}, {"landmarks": 2}, {"landmarks": 60, "ridge": 0.01, "steps": 9}])
def test_contract(options: dict) -> None:
    check_attention("skyformer", causal=False, options=options)


def test_it_approaches_the_kernel_as_landmarks_grow() -> None:
    q, k, v = torch.randn(3, 1, 4, 100, 4, dtype=torch.float64) / 2
    plain = [error(q, k, v, landmarks=m) for m in (4, 16, 64, 160)]
    assert plain == sorted(plain, reverse=True) and plain[-1] < 0.1
    exact = [error(q, k, v, landmarks=m, ridge=1e-8, steps=30) for m in (4, 16, 64, 160)]
    assert exact == sorted(exact, reverse=True) and exact[-1] < 1e-3
    assert error(q, k, v, landmarks=200) < 1e-12  # every token is one


def test_landmarks_are_real_tokens_whatever_the_padding() -> None:
    seed = torch.tensor(12345)
    alone = draw_skyformer_landmarks(seed, torch.ones(1, 30, dtype=torch.bool), 10)
    assert len(set(alone[0].tolist())) == 10
    real = torch.zeros(2, 50, dtype=torch.bool)
    real[0, 7:37], real[1, :30] = True, True
    padded = draw_skyformer_landmarks(seed, real, 10)
    assert torch.equal(padded[0] - 7, alone[0]) and torch.equal(padded[1], alone[0])
    assert not torch.equal(draw_skyformer_landmarks(seed + 1, real, 10)[1], alone[0])


def test_landmarks_are_drawn_evenly() -> None:
    real = torch.ones(1, 40, dtype=torch.bool)
    counts = torch.zeros(40)
    for seed in torch.randint(2**62, (2000,)):
        counts[draw_skyformer_landmarks(seed, real, 10)[0]] += 1
    assert float(counts.mean()) == 500
    assert float((counts - 500).abs().max()) < 5 * (2000 * 0.25 * 0.75) ** 0.5


def test_scrambling_never_gives_a_number_twice() -> None:
    assert len(_scramble(torch.arange(100_000)).unique()) == 100_000


def test_the_seed_is_stored() -> None:
    cores = [linnet.create_attention("skyformer", heads=1, head_dim=4, causal=False, landmarks=8) for _ in range(2)]
    q, k, v = torch.randn(3, 1, 1, 40, 4)
    assert not torch.equal(cores[0](q, k, v), cores[1](q, k, v))
    cores[1].load_state_dict(cores[0].state_dict())
    assert torch.equal(cores[0](q, k, v), cores[1](q, k, v))


def test_a_short_row_is_exact_even_beside_a_long_one() -> None:
    core = linnet.create_attention("skyformer", heads=2, head_dim=8, causal=False, landmarks=32)
    kernel = linnet.create_attention("kernelized", heads=2, head_dim=8, causal=False)
    q, k, v = torch.randn(3, 2, 2, 40, 8)
    real = torch.ones(2, 40, dtype=torch.bool)
    real[0, 16:] = False
    both = core(q, k, v, key_mask=real)
    assert contract_difference(both[:1, :, :16], kernel(*(x[:1, :, :16] for x in (q, k, v)))) < 1e-6
    assert contract_difference(both[1:], core(q[1:], k[1:], v[1:])) < 1e-5


def test_an_odd_number_of_landmarks_is_one_line() -> None:
    with pytest.raises(InputError, match=r"skyformer.landmarks is 5: .*multiple of 2"):
        linnet.create_attention("skyformer", heads=1, head_dim=4, causal=False, landmarks=5)
