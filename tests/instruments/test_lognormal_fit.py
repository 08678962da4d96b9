"""Softmax over Gaussian queries and keys follows the log-normal law that the LLN paper derives."""

import math

import pytest

from linnet.instruments import entropy, lognormal_fit, spectral_gap, temperature
from linnet.instruments.kernel_concentration import gaussian_kernel_inputs, kernel_weights


@pytest.mark.parametrize("sigma", [0.8, 1.0, 1.2])
def test_softmax_is_log_normal(sigma):
    """Variance sigma^4, mean -ln N - sigma^4/2, entropy log2 N - sigma^4/(2 ln 2), gap 1 - sqrt((e^sigma^4 - 1)/N)."""
    N = 512
    A = kernel_weights(*gaussian_kernel_inputs(N, 64, 0, sigma), "softmax")
    found, variance = lognormal_fit(A), sigma**4
    assert found.variance.item() == pytest.approx(variance, rel=0.06)
    assert found.mean.item() == pytest.approx(-math.log(N) - variance / 2, rel=0.01)
    assert abs(found.skew.item()) < 0.15
    assert found.ks.item() < 0.02
    assert temperature(A).item() == pytest.approx(1 / sigma**2, rel=0.03)
    assert entropy(A).item() == pytest.approx(math.log2(N) - variance / (2 * math.log(2)), abs=0.06)
    assert spectral_gap(A).item() == pytest.approx(1 - math.sqrt((math.exp(variance) - 1) / N), abs=0.03)
