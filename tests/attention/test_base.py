"""The shared part of all mechanisms: one mask layout per call, and mixers with replaced projections."""

import sys

import pytest
import torch
from torch import Tensor, nn

import linnet
from linnet.errors import InputError
from linnet.ops import masks
from tests.attention.cases import ABOUT, FORMS, NAMES, RECURRENT


class Wrapped(nn.Module):
    """A projection plus a low-rank update, without a weight of its own."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.down, self.up = nn.Linear(inner.in_features, 2), nn.Linear(2, inner.out_features)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.up(self.down(x))


def wrap(mixer: nn.Module) -> None:
    """Replace each projection of a mixer."""
    for name, layer in list(mixer.named_children()):
        if isinstance(layer, nn.Linear):
            setattr(mixer, name, Wrapped(layer))


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """A record of every call of `layout_of_masks`, wherever it was imported."""
    calls, real = [], masks.layout_of_masks

    def counted(B, N, *rest):  # type: ignore[no-untyped-def]
        calls.append((B, N))
        return real(B, N, *rest)

    for name, module in list(sys.modules.items()):
        if name.startswith("linnet.") and getattr(module, "layout_of_masks", None) is real:
            monkeypatch.setattr(module, "layout_of_masks", counted)
    return calls


@pytest.mark.parametrize("name,causal", FORMS)
def test_a_call_reads_its_masks_once(name: str, causal: bool, count: list[tuple[int, int]]) -> None:
    """Forward, weights and prefill, in float32 and in float64, which uses the other backend."""
    real = torch.ones(2, 40, dtype=torch.bool)
    real[0, 30:] = False
    ids = torch.arange(40).div(15, rounding_mode="floor").expand(2, 40) if ABOUT[name]["packed"] else None
    masked = {"key_mask": real, "segments": ids}
    for dtype in (torch.float32, torch.float64):
        mixer = linnet.create_mixer(name, width=32, heads=2, causal=causal).to(dtype)
        x = torch.randn(2, 40, 32, dtype=dtype)
        calls = [(mixer, {}), (mixer, masked), (mixer.weights, masked)]
        if causal and ABOUT[name]["recurrent"]:
            calls += [(mixer.prefill, {"key_mask": real})]
        for call, options in calls:
            count.clear()
            call(x, **options)
            assert count == [(2, 40)]


@pytest.mark.parametrize("name,causal", FORMS)
def test_projections_may_be_wrapped(name: str, causal: bool) -> None:
    """Like a low-rank adapter: the output is the same while its update is 0, and the update gets a gradient."""
    mixer = linnet.create_mixer(name, width=32, heads=2, causal=causal).eval()
    x = torch.randn(2, 20, 32)
    expected = mixer(x)
    wrap(mixer)
    y = mixer(x)
    assert torch.equal(y, expected)
    y.square().sum().backward()
    assert mixer.out.up.weight.grad.abs().sum() > 0
    with pytest.raises(InputError, match="with width 32"):
        mixer(torch.randn(2, 20, 16))


@pytest.mark.parametrize("name", RECURRENT)
@torch.no_grad()
def test_a_wrapped_mixer_decodes(name: str) -> None:
    mixer = linnet.create_mixer(name, width=32, heads=2, causal=True).eval()
    x = torch.randn(2, 10, 32)
    results = []
    for _ in range(2):
        y, state = mixer.prefill(x[:, :9])
        results.append((y, mixer.step(x[:, 9:], state)[0]))
        wrap(mixer)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name,causal", FORMS)
@torch.no_grad()
def test_projections_may_be_quantized(name: str, causal: bool) -> None:
    quantization = pytest.importorskip("torch.ao.quantization")
    engines = [engine for engine in torch.backends.quantized.supported_engines if engine != "none"]
    if not engines:
        pytest.skip("this torch has no engine for quantized products")
    torch.backends.quantized.engine = engines[0]
    mixer = linnet.create_mixer(name, width=32, heads=2, causal=causal).eval()
    x = torch.randn(2, 20, 32)
    quantized = quantization.quantize_dynamic(mixer, {nn.Linear}, dtype=torch.qint8)
    assert not isinstance(quantized.out, nn.Linear)
    y = quantized(x)
    assert y.shape == x.shape and y.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_place_type_and_bias_are_chosen_as_in_torch(name: str) -> None:
    causal = not ABOUT[name]["bidirectional"]
    mixer = linnet.create_mixer(name, width=16, heads=2, causal=causal, bias=False, dtype=torch.float64)
    assert mixer(torch.randn(2, 9, 16, dtype=torch.float64)).dtype == torch.float64
    assert all(part.bias is None for part in mixer.children() if isinstance(part, torch.nn.Linear))
    mixer.reset_parameters()
    on_meta = linnet.create_mixer(name, width=16, heads=2, causal=causal, device="meta")
    assert {parameter.device.type for parameter in on_meta.parameters()} == {"meta"}
    if ABOUT[name]["core"]:
        core = linnet.create_attention(name, heads=2, head_dim=8, causal=causal, device="meta", dtype=torch.bfloat16)
        assert {parameter.device.type for parameter in core.parameters()} <= {"meta"}
