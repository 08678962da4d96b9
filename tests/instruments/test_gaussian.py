"""Gaussian queries and keys: the log-normal law, moment matching and its calibration, kernels against temperature."""

import math

import pytest
import torch

from linnet.attention.lln import interpolated
from linnet.errors import InputError
from linnet.instruments import base, calibrate, entropy, kernel_concentration, lognormal_fit, spectral_gap, temperature
from linnet.instruments.kernel_concentration import KERNELS, gaussian, kernel_view, kernel_weights
from linnet.instruments.moment_matching import matching_table


@pytest.mark.parametrize("sigma", [0.8, 1.0, 1.2])
def test_softmax_is_log_normal(sigma):
    """Variance sigma^4, mean -ln N - sigma^4/2, entropy log2 N - sigma^4/(2 ln 2), gap 1 - sqrt((e^sigma^4 - 1)/N)."""
    N = 512
    A = kernel_weights(*gaussian(N, 64, 0, sigma), "softmax")
    found, variance = lognormal_fit(A), sigma**4
    assert found.variance.item() == pytest.approx(variance, rel=0.06)
    assert found.mean.item() == pytest.approx(-math.log(N) - variance / 2, rel=0.01)
    assert abs(found.skew.item()) < 0.15
    assert found.ks.item() < 0.02
    assert temperature(A).item() == pytest.approx(1 / sigma**2, rel=0.03)
    assert entropy(A).item() == pytest.approx(math.log2(N) - variance / (2 * math.log(2)), abs=0.06)
    assert spectral_gap(A).item() == pytest.approx(1 - math.sqrt((math.exp(variance) - 1) / N), abs=0.03)


def test_the_released_constants_match_variance_but_not_entropy():
    """Of 1,024 tokens and width 64 at deviation 1.2: variances within 10 %, but LLN is sharper by more than a bit."""
    (row,) = matching_table([1.2], tokens=1024, head_dim=64, match="paper", seeds=1)
    assert row["lln_variance"] == pytest.approx(row["softmax_variance"], rel=0.1)
    assert row["softmax_entropy"] == pytest.approx(8.52, abs=0.05)
    assert row["lln_entropy"] == pytest.approx(7.08, abs=0.15)
    assert row["softmax_gap"] == pytest.approx(0.916, abs=0.01)
    assert row["lln_skew"] > 0.3 > 0.15 > abs(row["softmax_skew"])


@pytest.mark.parametrize("D", [16, 64])
def test_calibration_gives_the_scales_that_lln_uses(D):
    found = calibrate(D, tokens=256, seeds=2)
    assert found.parabola_error < 0.05 < 0.2 > found.line_error
    for target in (0.7, 1.0, 2.0, 4.0):

        def deviation(coefficients, target=target):
            c2, c1, c0 = coefficients
            return math.sqrt((-c1 + math.sqrt(c1 * c1 - 4 * c2 * (c0 - target))) / (4 * c2))

        assert deviation(found.parabola) == pytest.approx(deviation(interpolated(D)), rel=0.04)
    with pytest.raises(InputError, match="head_dim is 0"):
        calibrate(0)


def test_only_exponential_kernels_follow_temperature():
    q, k = gaussian(512, 64, 0)
    bits = {name: kernel_concentration(q, k, name, [4.0, 1.0, 0.25])["bits"] for name in ("relu", "quadratic", "elu")}
    for name in ("relu", "quadratic"):
        assert torch.allclose(bits[name], bits[name][:1].expand(3))  # homogeneous: the scale cancels
    assert bits["quadratic"][0].item() == pytest.approx(9 - 1.0526, abs=0.02)  # 9 - E[x log2 x] of a chi-square
    assert bits["relu"][0].item() == pytest.approx(8.93, abs=0.02)
    assert float(bits["elu"].max() - bits["elu"].min()) < 0.03
    for name, last in (("softmax", 3.03), ("lln", 1.71)):
        found = entropy(kernel_weights(2 * q, 2 * k, name))
        assert found.item() == pytest.approx(last, abs=0.15)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_are_read_by_rows(kernel, monkeypatch):
    q, k = gaussian(40, 8, 0)
    whole = kernel_weights(q, k, kernel)
    monkeypatch.setattr(base, "ENTRIES", 40 * 16)
    monkeypatch.setattr(base, "HELD", 0)
    parts = dict(kernel_view(q, k, kernel).rows())
    assert list(parts) == [0, 16, 32]
    assert torch.allclose(torch.cat(list(parts.values()), dim=2)[0, 0], whole)
    assert torch.allclose(whole.sum(dim=1), torch.ones(40, dtype=torch.float64))


def test_a_query_that_no_key_answers_has_no_gap():
    """A query with no positive entry is 0 to ReLU, which must not keep the other kernels from being measured."""
    q, k = gaussian(40, 8, 0)
    q[3] = -q[3].abs()
    found = {name: kernel_concentration(q, k, name, [1.0, 2.0]) for name in KERNELS}
    assert found["relu"]["gap"].isnan().all()
    assert all(bool(value["bits"].isfinite().all()) for value in found.values())
    assert all(bool(found[name]["gap"].isfinite().all()) for name in KERNELS if name != "relu")


def test_gaps_of_kernels():
    q, k = gaussian(128, 32, 1)
    for name in KERNELS:
        found = kernel_concentration(q, k, name, [1.0])
        assert 0 < found["gap"].item() < 1
        assert found["gap"].item() == pytest.approx(spectral_gap(kernel_weights(q / q.std(), k / k.std(), name)).item())


@pytest.mark.parametrize(
    ("q", "kernel", "temperatures", "line"),
    [
        (torch.randn(4, 2), "gauss", [1.0], "unknown kernel 'gauss'"),
        (torch.randn(4), "elu", [1.0], "both must be"),
        (torch.randn(4, 2), "elu", [0.0], "above 0"),
        (torch.randn(4, 2), "elu", [], "above 0"),
    ],
)
def test_bad_input_is_one_line(q, kernel, temperatures, line):
    with pytest.raises(InputError, match=line):
        kernel_concentration(q, q, kernel, temperatures)
