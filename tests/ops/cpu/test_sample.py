"""The unevenness of sampled scores on the CPU kernels: the same keys and numbers as in PyTorch."""

import pytest
import torch

from linnet import create_attention
from linnet.ops.backend import no_cpu_backend

pytestmark = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")


@pytest.mark.parametrize("N", [1, 5, 200, 1500])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_torch(N: int, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(N)
    core = create_attention("informer", heads=3, head_dim=20, causal=False, factor=2)
    q, k = (torch.randn(2, N, 3, 20).transpose(1, 2) for _ in range(2))
    real = torch.rand(2, N) < 0.8 if masked else torch.ones(2, N, dtype=torch.bool)
    length = torch.tensor([N, max(1, N // 2)])
    M = core._unevenness(q, k, real, length)
    monkeypatch.setenv("LINNET_BACKEND", "torch")
    torch.testing.assert_close(M, core._unevenness(q, k, real, length), rtol=1e-5, atol=1e-5)
    wide = core._unevenness(q.double(), k.double(), real, length)  # scores a few keys or gathers them, by length
    torch.testing.assert_close(M, wide.float(), rtol=1e-5, atol=1e-5)
