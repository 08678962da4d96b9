"""NormAttention's norms: Eq. 34 of the paper and the epsilon of each."""

import pytest
import torch

import linnet


def merged(core, q, k, v):
    return (core.weights(q, k) @ v).transpose(1, 2).flatten(2)  # (B, N, H*D)


@pytest.mark.parametrize("eps", [None, 1e-3, 1.0])
@pytest.mark.parametrize("causal", [True, False])
def test_eq34_has_its_epsilon_under_the_root(eps: float | None, causal: bool) -> None:
    core = linnet.create_attention("norm", heads=3, head_dim=4, causal=causal, xnorm="eq34", eps=eps).double()
    q, k, v = (torch.randn(2, 3, 9, 4, dtype=torch.float64) for _ in range(3))
    x = merged(core, q, k, v)
    expected = x / (x.square().mean(dim=-1, keepdim=True) + (1e-8 if eps is None else eps)).sqrt()
    assert torch.allclose(core(q, k, v).transpose(1, 2).flatten(2), expected)
    assert not [name for name in core.state_dict() if "xnorm" in name]


@pytest.mark.parametrize("xnorm,usual", [("srms", 1e-8), ("eq34", 1e-8), ("rms", 1e-6), ("layer", 1e-5)])
def test_eps_is_that_of_the_norm(xnorm: str, usual: float) -> None:
    def core(**options):
        return linnet.create_attention("norm", heads=1, head_dim=4, causal=True, xnorm=xnorm, **options).double()

    first, same, other = core(), core(eps=usual), core(eps=0.5)
    for twin in (same, other):
        twin.load_state_dict(first.state_dict())
    q, k, v = (torch.randn(1, 1, 9, 4, dtype=torch.float64) * 0.3 for _ in range(3))
    assert torch.equal(first(q, k, v), same(q, k, v))
    assert not torch.allclose(first(q, k, v), other(q, k, v), rtol=1e-2)


def test_the_gradient_of_eq34_at_zero_is_that_of_its_epsilon() -> None:
    core = linnet.create_attention("norm", heads=1, head_dim=2, causal=True, xnorm="eq34", eps=1e-4)
    o = torch.zeros(1, 1, 1, 2, requires_grad=True)
    core.finish(o).sum().backward()
    assert torch.allclose(o.grad, torch.full_like(o, 100.0))
