"""Performer: what its features estimate, how fast that converges, redrawing, and half precision."""

import math

import pytest
import torch
from torch import Tensor

import linnet
from linnet.attention.performer import performer_features
from linnet.ops.masks import layout_of_masks
from linnet.testing import check_attention, contract_difference


def estimate(q: Tensor, k: Tensor, m: int) -> Tensor:
    """phi(q) . phi(k) with m features, including the query's |q|^2 / 2, which the mechanism may leave out."""
    core = linnet.create_attention("performer", heads=1, head_dim=q.shape[1], causal=False, features=m)
    where = layout_of_masks(1, len(q), None, None, q.device)
    log_q, log_k = (x[0, 0] for x in core.log_features(q[None, None], k[None, None], where, False).products())
    log_q = log_q - q.square().sum(dim=1, keepdim=True) * q.shape[1] ** -0.5 / 2
    return log_q.exp() @ log_k.exp().mT / m


def test_the_features_estimate_the_exponential_of_the_scaled_product() -> None:
    """Scaled once: e^(q.k / sqrt(D)), neither e^(q.k) nor e^(q.k / D), which is off by a fifth."""
    q, k = torch.randn(2, 24, 16, dtype=torch.float64) / 2  # of large vectors the variance has no bound
    mean = torch.stack([estimate(q, k, 256) for _ in range(200)]).mean(dim=0)
    exact = (q @ k.mT / math.sqrt(16)).exp()
    assert float(((mean - exact) / exact).square().mean().sqrt()) < 0.03


def test_the_error_falls_as_one_over_the_root_of_the_number_of_features() -> None:
    q, k = torch.randn(2, 24, 16, dtype=torch.float64) / 2
    exact = (q @ k.mT / math.sqrt(16)).exp()
    sizes = [16, 64, 256, 1024]
    errors = [
        torch.stack([(estimate(q, k, m) / exact - 1).square().mean() for _ in range(40)]).mean().sqrt().log()
        for m in sizes
    ]
    slope = float((errors[-1] - errors[0]) / math.log(sizes[-1] / sizes[0]))
    assert slope == pytest.approx(-0.5, abs=0.05)


@pytest.mark.parametrize("causal", [True, False])
def test_with_many_features_it_is_softmax(causal: bool) -> None:
    q, k, v = torch.randn(3, 1, 2, 50, 8) / 2
    softmax = linnet.create_attention("softmax", heads=2, head_dim=8, causal=causal)(q, k, v)
    sizes = {"heads": 2, "head_dim": 8, "causal": causal}
    few, many = (linnet.create_attention("performer", **sizes, features=m) for m in (16, 8192))
    assert contract_difference(many(q, k, v), softmax) < 0.1 < contract_difference(few(q, k, v), softmax)


def test_rows_are_orthogonal_in_their_block_and_normally_distributed() -> None:
    W = performer_features(40, 16)
    for block in W.split(16):
        angles = block @ block.mT
        assert torch.allclose(angles, angles.diagonal().diag(), atol=1e-4)
    many = performer_features(16 * 2000, 16)
    assert torch.allclose(many.mT @ many / len(many), torch.eye(16), atol=0.05)
    assert float(many.square().sum(dim=1).var()) == pytest.approx(2 * 16, rel=0.1)  # chi-squared


def test_redrawing_is_for_training_alone() -> None:
    core = linnet.create_attention("performer", heads=2, head_dim=8, causal=True, redraw=True)
    q, k, v = torch.randn(3, 1, 2, 20, 8)
    stored = core.state_dict()["W"].clone()
    assert not torch.equal(core(q, k, v), core(q, k, v))
    core.eval()
    evaluated = core(q, k, v)
    assert torch.equal(core(q, k, v), evaluated) and torch.equal(core.W, stored)
    still = linnet.create_attention("performer", heads=2, head_dim=8, causal=True)
    still.load_state_dict(core.state_dict())
    assert torch.equal(still(q, k, v), evaluated)  # in training mode, without redraw


def test_a_state_has_the_stored_rows_in_training_too() -> None:
    core = linnet.create_attention("performer", heads=2, head_dim=8, causal=True, redraw=True)
    q, k, v = torch.randn(3, 1, 2, 20, 8)
    first, state = core.prefill(*(x[:, :, :19] for x in (q, k, v)))
    last, _ = core.step(*(x[:, :, 19:] for x in (q, k, v)), state)
    whole = core.eval()(q, k, v)
    assert contract_difference(torch.cat([first, last], dim=2), whole) < 1e-5
    assert contract_difference(core.train().weights(q, k) @ v, whole) < 1e-5


def test_features_stay_float32_in_a_half_model() -> None:
    core = linnet.create_attention("performer", heads=2, head_dim=8, causal=True)
    before = core.W.clone()
    assert torch.equal(core.bfloat16().W, before) and torch.equal(core.half().W, before)
    assert core.double().W.dtype == torch.float64


def test_any_number_of_features_and_a_huge_key() -> None:
    for features in (1, 5, 20):
        check_attention("performer", causal=True, options={"features": features}, lengths=(1, 7, 64))
    core = linnet.create_attention("performer", heads=1, head_dim=4, causal=True)
    q, k, v = torch.randn(3, 1, 1, 70, 4)
    k[:, :, 40] *= 1000
    assert core(q, k, v).isfinite().all()
