"""SRMS and RMS against their formulas, and at the zero vector."""

import torch

from linnet.ops.rms import rms, srms


def test_srms_is_its_formula() -> None:
    x = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    over_last = x / (x.square().mean(dim=-1, keepdim=True).sqrt() + 1e-8)
    merged = x.transpose(1, 2).flatten(2)
    over_merged = merged / (merged.square().mean(dim=-1, keepdim=True).sqrt() + 1e-8)
    assert torch.allclose(srms(x), over_last, atol=1e-14)
    assert torch.allclose(srms(x, dim=(1, 3)).transpose(1, 2).flatten(2), over_merged, atol=1e-14)


def test_the_gradient_at_zero_is_finite() -> None:
    x = torch.zeros(2, 4, requires_grad=True)
    srms(x).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_gradcheck() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    gain = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(srms, (x,))
    assert torch.autograd.gradcheck(rms, (x, gain))


def test_half_precision_is_computed_in_float32() -> None:
    x = 300 * torch.ones(1, 4096, dtype=torch.float16)  # the sum of squares overflows float16
    assert torch.allclose(srms(x).float(), torch.ones(1, 4096), atol=1e-3)
    assert torch.allclose(rms(x, torch.ones(4096, dtype=torch.float16)).float(), torch.ones(1, 4096), atol=1e-3)
