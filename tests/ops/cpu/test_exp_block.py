"""lln_diag in one op equals the mean of its two branches in values and gradients, and needs little more memory."""

import random

import pytest
import torch

import linnet
from linnet.ops.backend import no_cpu_backend
from linnet.ops.cpu import arguments, block
from tests.ops.cases import MASKS, grads, key_mask, segments, specified

pytestmark = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")


@pytest.mark.parametrize("seed", range(24))
def test_equals_its_branches(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random shapes, masks, segments and threads; the separate branches run in float64, which no kernel supports."""
    random.seed(seed)
    monkeypatch.setattr(arguments, "SMALL", 0)
    monkeypatch.setattr(block, "SMALL", 0)
    B, H, D, causal = random.choice([1, 3]), random.choice([1, 5]), random.choice([8, 9, 32]), seed % 2 == 0
    N, E, mask = random.randint(1, 150), random.choice([8, 20]), random.choice(MASKS)
    real, ids = key_mask(mask, B, N), segments(B, N) if random.random() < 0.5 else None
    core = linnet.create_attention("lln_diag", heads=H, head_dim=D, causal=causal, block=random.choice([1, 16, 64]))
    leaves = [torch.randn(B, N, H, width).transpose(1, 2) for width in (D, D, E)]
    keep, results = specified(real, ids, B, N), []
    for dtype in (torch.float64, torch.float32):
        inputs = [x.detach().to(dtype).requires_grad_() for x in leaves]
        o = core(*inputs, key_mask=real, segments=ids).double()
        assert o.isfinite().all()
        o = o * keep
        results.append([o, *grads([o], inputs)])
    least = 0.1 * max(float(x.detach().abs().max()) for x in results[0])
    for theirs, ours in zip(*results, strict=True):
        error = float((ours - theirs).detach().abs().max())
        assert error <= 1e-5 * max(float(theirs.detach().abs().max()), least)


def test_compiles_to_one_graph_and_is_declared_rightly() -> None:
    torch._dynamo.reset()
    core = linnet.create_attention("lln_diag", heads=2, head_dim=16, causal=False)
    compiled, results = torch.compile(core, fullgraph=True, backend="aot_eager"), []
    leaves = [torch.randn(2, 2, 100, 16, requires_grad=True) for _ in range(3)]
    for fn in (core, compiled):
        o = fn(*leaves, key_mask=key_mask("left", 2, 100))
        results.append([o, *grads([o], leaves)])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*results, strict=True))
    scales = torch.rand(2, 2, 1, 1), torch.rand(2, 2, 1, 1)
    inputs = *leaves, *scales, key_mask("inner", 2, 100), None, segments(2, 100), 16, True, 0.25
    tests = "test_schema", "test_faketensor", "test_autograd_registration"
    torch.library.opcheck(torch.ops.linnet.cpu_exp_block.default, inputs, test_utils=tests)
