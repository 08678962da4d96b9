"""LLN: golden values of the released code, matched variance, statistics that do not leak, and its options."""

import pytest
import torch

import linnet
from linnet.attention.lln import MEASURED, interpolated_lln_coefficients
from linnet.errors import InputError, UnsupportedError

GOLDEN = {
    False: """
        .5032 .5248 -.1797   .6414 .4807 -.0756   .4694 .5255 -.2264   1.0657 .3068 .3656
        -.7917 -1.0734 -.5935   -.7895 -1.1420 -.6682   -.7662 -.2344 -.5392   -.4690 -.7762 -.9950""",
    True: """
        -.0933 .6871 -.8383   -.0615 .7395 -.6900   .1475 .6462 -.5867   1.0657 .3068 .3656
        -.8025 -1.2952 -.7502   -.8238 -1.2323 -.7327   -.9951 -.3673 -.3389   -.4690 -.7762 -.9950""",
}


@pytest.mark.parametrize("causal", [False, True])
def test_golden_values_of_the_released_code(causal: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 4, 3) for _ in range(3))
    core = linnet.create_attention("lln_diag", heads=2, head_dim=3, causal=causal, statistics="tensor", match="paper")
    golden = torch.tensor([float(x) for x in GOLDEN[causal].split()]).view(1, 2, 4, 3)
    assert torch.allclose(core(q, k, v), golden, atol=6e-5)


@pytest.mark.parametrize("D", [16, 32, 48, 64, 96, 128, 256])
@pytest.mark.parametrize("sigma", [0.9, 1.0, 1.2, 1.4])
def test_the_variance_of_ln_P_is_that_of_softmax(D: int, sigma: float) -> None:
    core = linnet.create_attention("lln", heads=2, head_dim=D, causal=False)
    q, k = (sigma * torch.randn(1, 2, 512, D) for _ in range(2))
    ours = core.weights(q, k).log().var(dim=-1).mean()
    softmax = (q @ k.mT / D**0.5).log_softmax(dim=-1).var(dim=-1).mean()
    assert float(ours / softmax) == pytest.approx(1, abs=0.08)


def test_coefficients_are_interpolated_in_log2_and_clamped() -> None:
    assert interpolated_lln_coefficients(64) == MEASURED[64] and interpolated_lln_coefficients(256) == MEASURED[256]
    assert interpolated_lln_coefficients(8) == MEASURED[16] and interpolated_lln_coefficients(1024) == MEASURED[256]
    middle = interpolated_lln_coefficients(round(2**6.5))
    assert all(min(a, b) < x < max(a, b) for x, a, b in zip(middle, MEASURED[64], MEASURED[128], strict=True))


def test_prefix_statistics_are_those_of_the_prefix() -> None:
    """The causal output at t equals the bidirectional output on the first t+1 tokens."""
    q, k, v = (torch.randn(2, 2, 40, 8, dtype=torch.float64) * torch.linspace(0.5, 2, 40)[:, None] for _ in range(3))
    causal = linnet.create_attention("lln", heads=2, head_dim=8, causal=True)
    where = linnet.ops.masks.layout_of_masks(2, 40, None, None, q.device)
    alpha, beta, _ = causal.scales(q, k, True, where)  # (B, H, N, 1)
    for t in (0, 9, 39):
        part = slice(0, t + 1)
        where = linnet.ops.masks.layout_of_masks(2, t + 1, None, None, q.device)
        both = linnet.create_attention("lln", heads=2, head_dim=8, causal=False)
        alone = both.scales(q[:, :, part], k[:, :, part], False, where)
        assert torch.allclose(alpha[:, :, t : t + 1], alone[0]) and torch.allclose(beta[:, :, t : t + 1], alone[1])


@pytest.mark.parametrize("match", ["variance", "paper"])
def test_prefix_statistics_across_read_no_later_query(match: str) -> None:
    """A decoder's cross-attention: queries up to t and all keys; equal deviations give the scales of the sample."""
    q, k, v = (torch.randn(2, 2, N, 16, dtype=torch.float64) for N in (30, 50, 50))
    core = linnet.create_attention("lln", heads=2, head_dim=16, causal=False, statistics="prefix", match=match)
    sample = linnet.create_attention("lln", heads=2, head_dim=16, causal=False, match=match)
    o = core(q, k, v)
    assert torch.allclose(o, core.weights(q, k) @ v, atol=1e-12)
    assert torch.allclose(core(q[:, :, :11], k, v), o[:, :, :11], atol=1e-12)
    assert not torch.allclose(sample(q[:, :, :11], k, v), sample(q, k, v)[:, :, :11], atol=1e-4)
    x = k[:, :, :30]
    where = core.layout(x, x.flip(3), v[:, :, :30], None, None, cross=True)
    ours, theirs = (each.scales(x, x.flip(3), False, where)[:2] for each in (core, sample))  # keys as spread as queries
    assert all(torch.allclose(a[:, :, -1], b[:, :, -1]) for a, b in zip(ours, theirs, strict=True))


def test_statistics_carry_no_gradient() -> None:
    core = linnet.create_attention("lln", heads=1, head_dim=4, causal=False)
    q, k, v = (torch.randn(1, 1, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    where = linnet.ops.masks.layout_of_masks(1, 6, None, None, q.device)
    assert not any(x.requires_grad for x in core.scales(q, k, False, where))
    A = core.weights(q, k)
    ours = torch.autograd.grad(core(q, k, v).square().sum(), (q, k))
    theirs = torch.autograd.grad((A @ v).square().sum(), (q, k))
    assert all(torch.allclose(a, b) for a, b in zip(ours, theirs, strict=True))


def test_what_is_not_allowed() -> None:
    with pytest.raises(UnsupportedError, match="reads the future"):
        linnet.create_attention("lln", heads=1, head_dim=4, causal=True, statistics="sample")
    core = linnet.create_attention("lln", heads=1, head_dim=4, causal=True, statistics="tensor")
    x = torch.randn(1, 1, 3, 4)
    with pytest.raises(UnsupportedError, match="cannot prefill"):
        core.prefill(x, x, x)
    with pytest.raises(InputError, match="statistics"):
        linnet.create_attention("lln", heads=1, head_dim=4, causal=True, statistics="batch")


@pytest.mark.parametrize("mix", ["scale", "ratio"])
def test_learned_mixes_start_as_the_average(mix: str) -> None:
    q, k, v = (torch.randn(1, 2, 20, 4) for _ in range(3))
    learned = linnet.create_attention("lln_diag", heads=2, head_dim=4, causal=True, mix=mix)
    plain = linnet.create_attention("lln_diag", heads=2, head_dim=4, causal=True)
    assert torch.allclose(learned(q, k, v), plain(q, k, v), atol=1e-6)
    assert len(list(learned.parameters())) == (2 if mix == "scale" else 1)
    with pytest.raises(UnsupportedError, match="no single matrix"):
        learned.weights(q, k)
