"""Mechanisms against other code with the same parameters, in float64: the first table of docs/fidelity.md."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import linnet
from linnet.bench import forms, released

H, D, N = 4, 16, 256


def differences(
    ours: Callable[..., Tensor], theirs: Callable[..., Tensor], inputs: list[Tensor]
) -> tuple[float, float]:
    """The largest difference of values and of gradients, relative to the largest entry."""
    sides = []
    for call in (ours, theirs):
        leaves = [x.clone().requires_grad_() for x in inputs]
        o = call(*leaves)
        torch.manual_seed(1)
        sides.append([o.detach(), *torch.autograd.grad(o, leaves, torch.randn_like(o))])
    values, *slopes = (float((a - b).abs().max() / b.abs().max()) for a, b in zip(*sides, strict=True))
    return values, max(slopes)


def core(name: str, causal: bool = False, **options) -> linnet.attention.base.Core:
    return linnet.create_attention(name, heads=H, head_dim=D, causal=causal, **options).double()


def mixer(name: str, causal: bool = False, **options) -> linnet.attention.base.Mixer:
    return linnet.create_mixer(name, width=H * D, heads=H, causal=causal, **options).double()


@pytest.fixture
def qkv() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, H, N, D, dtype=torch.float64) for _ in range(3)]


@pytest.fixture
def x() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, N, H * D, dtype=torch.float64)]


def test_softmax_long_short_cosformer_and_lln(qkv: list[Tensor]) -> None:
    assert differences(core("softmax"), forms.torch_softmax_form, qkv) == (0, 0)
    window = core("long_short")
    assert max(differences(window, released.LongShortAsReleased(window), qkv)) < 1e-14
    assert max(differences(core("cosformer"), released.CosformerAsReleased(4096, False), qkv)) < 1e-7
    matched = core("lln", statistics="tensor", match="paper")
    assert max(differences(matched, forms.released_lln_form, qkv)) < 1e-7


@pytest.mark.parametrize(("name", "causal"), [("flash", False), ("flash", True), ("flash_quad", False)])
def test_gated_units(x: list[Tensor], name: str, causal: bool) -> None:
    ours = mixer(name, causal)
    assert max(differences(ours, released.GatedAsReleased(ours), x)) < 1e-14


@torch.no_grad()
def copy_projections(ours: linnet.attention.base.Mixer, qkv: Tensor, out: torch.nn.Linear) -> None:
    ours.qkv.weight.copy_(qkv)
    ours.qkv.bias.zero_()
    ours.out.load_state_dict(out.state_dict())


def test_linformer(x: list[Tensor]) -> None:
    package = pytest.importorskip("linformer")
    theirs = package.LinformerSelfAttention(dim=H * D, seq_len=N, k=32, heads=H, share_kv=True).double().eval()
    ours = mixer("linformer", k=32, max_length=N)
    key = theirs.to_k.weight
    copy_projections(ours, torch.cat([theirs.to_q.weight, key, key]), theirs.to_out)
    with torch.no_grad():
        ours.core.E.copy_(theirs.proj_k.T.expand(H, -1, -1))
    assert max(differences(ours, theirs, x)) < 1e-14


@pytest.mark.parametrize("matrix_by_matrix", [True, False])
def test_nystromformer(x: list[Tensor], monkeypatch: pytest.MonkeyPatch, matrix_by_matrix: bool) -> None:
    """The package starts its pseudo-inverse from the largest norms of the whole batch, and linnet from each matrix's.

    If the package's own function gets one matrix at a time, both are the same; else the difference shrinks with steps.
    """
    package = pytest.importorskip("nystrom_attention.nystrom_attention")
    invert = package.moore_penrose_iter_pinv
    if matrix_by_matrix:
        monkeypatch.setattr(
            package,
            "moore_penrose_iter_pinv",
            lambda A, steps: torch.cat([invert(one, steps) for one in A.flatten(0, 1).split(1)]).view_as(A),
        )
    sizes = {"dim": H * D, "dim_head": D, "heads": H, "num_landmarks": 32, "residual": False}
    found = []
    for steps in (6, 12):
        torch.manual_seed(0)
        theirs = package.NystromAttention(**sizes, pinv_iterations=steps).double().eval()
        ours = mixer("nystromformer", landmarks=32, steps=steps)
        copy_projections(ours, theirs.to_qkv.weight, theirs.to_out[0])
        found.append(differences(ours, theirs, x))
    if matrix_by_matrix:
        assert max(*found[0], *found[1]) < 1e-12, found
    else:
        assert found[1][0] < found[0][0] / 2 and found[1][1] < found[0][1] / 2
