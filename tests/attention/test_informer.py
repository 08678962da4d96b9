"""Informer: how many queries attend and which; samples depend on the row, not on its batch."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import linnet
from linnet.testing import check_attention, contract_difference


def informer(factor: int = 2) -> linnet.attention.base.Core:
    return linnet.create_attention("informer", heads=2, head_dim=8, causal=False, factor=factor)


@pytest.mark.parametrize("factor", [1, 3, 1000])
def test_contract(factor: int) -> None:
    check_attention("informer", causal=False, options={"factor": factor}, lengths=(1, 7, 64, 150))


@pytest.mark.parametrize("N", [1, 2, 30, 200])
def test_the_budget_attends_and_the_rest_is_the_mean(N: int) -> None:
    q, k, v = (torch.randn(1, 2, N, 8) for _ in range(3))
    o = informer()(q, k, v)
    exact = scaled_dot_product_attention(q, k, v)
    mean = v.mean(dim=2, keepdim=True).expand_as(v)
    attends, averages = (torch.isclose(o, x, atol=1e-5).all(dim=-1) for x in (exact, mean))
    assert (attends | averages).all()
    if N > 1:
        assert (attends.sum(dim=2) == min(N, 2 * math.ceil(math.log(N)))).all()


def test_a_sharp_query_is_among_them() -> None:
    q, k, v = (torch.randn(1, 2, 200, 8) for _ in range(3))
    q[:, :, 77] *= 20
    rows = informer().weights(q, k)[0]
    assert (rows[:, 77].max(dim=-1).values > 0.5).all()


def test_all_queries_attend_in_a_short_row() -> None:
    q, k, v = (torch.randn(2, 2, 40, 8) for _ in range(3))
    torch.testing.assert_close(informer(16)(q, k, v), scaled_dot_product_attention(q, k, v))


def test_the_budget_is_that_of_the_row() -> None:
    core = informer()
    q, k, v = (torch.randn(2, 2, 300, 8) for _ in range(3))
    real = torch.stack([torch.arange(300) < n for n in (300, 25)])
    A = core.weights(q, k, real)
    sharp = (A[1, :, :25].amax(dim=-1) > 1 / 25 + 1e-6).sum(dim=-1)
    assert sharp.tolist() == [2 * math.ceil(math.log(25))] * 2
    o = core(q, k, v, key_mask=real)
    assert contract_difference(o[1:, :, :25], core(q[1:, :, :25], k[1:, :, :25], v[1:, :, :25])) < 1e-6


def test_a_masked_token_is_neither_sampled_nor_averaged_nor_chosen() -> None:
    core = informer()
    q, k, v = (torch.randn(1, 2, 60, 8) for _ in range(3))
    q[:, :, 30:40] *= 50  # these would be chosen first
    real = (torch.arange(60) < 30) | (torch.arange(60) >= 40)
    before = core(q, k, v, key_mask=real[None])
    for x in (q, k, v):
        x[:, :, 30:40] = 1000 * torch.randn(1, 2, 10, 8)
    assert torch.equal(core(q, k, v, key_mask=real[None])[:, :, real], before[:, :, real])


def test_the_choice_has_no_gradient_and_the_rest_has() -> None:
    core = informer()
    q, k, v = (torch.randn(1, 2, 100, 8, requires_grad=True) for _ in range(3))
    core(q, k, v).square().sum().backward()
    felt = (q.grad.abs().sum(dim=-1) > 0).sum(dim=2)
    assert (felt == 2 * math.ceil(math.log(100))).all()  # only the queries that attend
    assert (k.grad.abs().sum(dim=-1) > 0).all() and (v.grad.abs().sum(dim=-1) > 0).all()
