"""Kernels on Gaussian queries and keys: which of them follow the temperature, and what their gaps are."""

import pytest
import torch

from linnet.errors import InputError
from linnet.instruments import base, entropy, kernel_concentration, spectral_gap
from linnet.instruments.kernel_concentration import KERNELS, gaussian_kernel_inputs, kernel_view, kernel_weights


def test_only_exponential_kernels_follow_temperature():
    q, k = gaussian_kernel_inputs(512, 64, 0)
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
    q, k = gaussian_kernel_inputs(40, 8, 0)
    whole = kernel_weights(q, k, kernel)
    monkeypatch.setattr(base, "ENTRIES", 40 * 16)
    monkeypatch.setattr(base, "HELD", 0)
    parts = dict(kernel_view(q, k, kernel).rows())
    assert list(parts) == [0, 16, 32]
    assert torch.allclose(torch.cat(list(parts.values()), dim=2)[0, 0], whole)
    assert torch.allclose(whole.sum(dim=1), torch.ones(40, dtype=torch.float64))


def test_a_query_that_matches_no_key_leaves_no_gap():
    """ReLU maps a query without a positive entry to 0, which must not stop the measurement of the other kernels."""
    q, k = gaussian_kernel_inputs(40, 8, 0)
    q[3] = -q[3].abs()
    found = {name: kernel_concentration(q, k, name, [1.0, 2.0]) for name in KERNELS}
    assert found["relu"]["gap"].isnan().all()
    assert all(bool(value["bits"].isfinite().all()) for value in found.values())
    assert all(bool(found[name]["gap"].isfinite().all()) for name in KERNELS if name != "relu")


def test_gaps_of_kernels():
    q, k = gaussian_kernel_inputs(128, 32, 1)
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
def test_bad_input_is_refused_in_one_line(q, kernel, temperatures, line):
    with pytest.raises(InputError, match=line):
        kernel_concentration(q, q, kernel, temperatures)
