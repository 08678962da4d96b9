"""The CPU kernels equal the dense reference in values and gradients, at any shape, mask, stride and scale."""

import random
from importlib import import_module

import pytest
import torch
from torch import Tensor

from linnet.errors import UnsupportedError
from linnet.ops import linear_attention, reference
from linnet.ops.backend import no_cpu_backend
from linnet.ops.cpu import arguments
from tests.ops.cases import MASKS, grads, key_mask, memory_over_floor, relative, segments

pytestmark = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")
WIDTHS = [(8, 8), (16, 12), (9, 33), (64, 64), (70, 20), (256, 40), (24, 256)]


def draw(B: int, H: int, N: int, D: int, E: int, positive: bool = False) -> list[Tensor]:
    """Queries, keys and values; some of them (B,N,H,.) in memory."""
    made = []
    for width in (D, D, E):
        swapped = random.random() < 0.5
        x = torch.randn(B, N, H, width).transpose(1, 2) if swapped else torch.randn(B, H, N, width)
        made.append(x.abs() if positive and len(made) < 2 else x)
    return made


def compare(leaves: list[Tensor], state: list[Tensor], returns: bool, **arguments: object) -> None:
    """Values, state and gradients of the kernels in float32 against the reference in float64."""
    results = []
    for fn, dtype in ((reference.linear_attention, torch.float64), (linear_attention, torch.float32)):
        inputs = [x.detach().to(dtype).requires_grad_() for x in (*leaves, *state)]
        kept = {"state": tuple(inputs[3:])} if state else {}
        backend = None if dtype == torch.float64 else "cpu"
        out = fn(*inputs[:3], **arguments, **kept, return_state=returns, backend=backend)
        out = [out[0], *out[1]] if returns else [out]
        results.append(([x.double() for x in out], grads([x.double() for x in out], inputs)))
    (values, slopes), (our_values, our_slopes) = results
    assert all(relative(ours, theirs) < 1e-5 for ours, theirs in zip(our_values, values, strict=True))
    least = 0.1 * max(float(x.abs().max()) for x in slopes)  # one that is 0 is so but for the rounding of the others
    for ours, theirs in zip(our_slopes, slopes, strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).abs().max()) <= 1e-5 * max(float(theirs.abs().max()), least)


def trial(N: int, causal: bool, normalize: bool, mask: str | None, packed: bool, stateful: bool) -> None:
    B, H, (D, E) = random.choice([1, 2, 3]), random.choice([1, 2, 5]), random.choice(WIDTHS)
    state = [torch.randn(B, H, D, E), torch.rand(B, H, D)][: 1 + normalize] if stateful else []
    masks = {"key_mask": key_mask(mask, B, N), "segments": segments(B, N) if packed else None}
    compare(draw(B, H, N, D, E, normalize), state, causal or not packed, causal=causal, normalize=normalize, **masks)


@pytest.mark.parametrize("N", [1, 7, 32, 33, 100, 257])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_linear_equals_reference(N: int, causal: bool, normalize: bool) -> None:
    random.seed(N)
    for mask in MASKS:
        for packed in (False, True):
            for stateful in (False, True) if causal or not packed else (False,):
                trial(N, causal, normalize, mask, packed, stateful)


@pytest.mark.parametrize("seed", range(30))
def test_linear_fuzz(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random shapes and switches, threads and spans."""
    random.seed(seed)
    torch.manual_seed(seed)
    monkeypatch.setattr(arguments, "LONG", 32)
    monkeypatch.setattr(arguments, "SMALL", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(random.choice([1, 2, 5, 13]))
    try:
        flags = [random.random() < 0.5 for _ in range(4)]
        trial(random.randint(1, 300), flags[0], flags[1], random.choice(MASKS), flags[2], flags[3] and flags[0])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_linear_at_any_scale(scale: float) -> None:
    q, k, v = draw(2, 2, 90, 16, 16)
    ours, theirs = (linear_attention(q * scale, k, v / scale, backend=name) for name in ("cpu", "reference"))
    assert relative(ours, theirs) < 1e-5


@pytest.mark.parametrize("causal", [True, False])
def test_masked_tokens_are_never_read(causal: bool) -> None:
    q, k, v = draw(2, 2, 70, 16, 9, positive=True)
    real = key_mask("inner", 2, 70)
    hidden = ~real[:, None, :, None].expand(-1, 2, -1, 1)
    clean = [x.masked_fill(hidden, 0) for x in (k, v)]
    dirty = [x.masked_fill(hidden, torch.nan).requires_grad_() for x in (k, v)]
    options = {"causal": causal, "normalize": True, "key_mask": real, "backend": "cpu"}
    o = linear_attention(q, *dirty, **options)
    assert torch.equal(linear_attention(q, *clean, **options), o)
    for dx in torch.autograd.grad(o.sum(), dirty):
        assert dx.isfinite().all() and not dx[hidden.expand_as(dx)].any()


def test_the_future_is_never_read() -> None:
    q, k, v = draw(2, 2, 150, 16, 16, positive=True)
    before = linear_attention(q, k, v, normalize=True, backend="cpu")
    k, v = k.clone(), v.clone()
    k[:, :, 90:], v[:, :, 90:] = torch.inf, torch.nan
    after = linear_attention(q, k, v, normalize=True, backend="cpu")
    assert torch.equal(before[:, :, :90], after[:, :, :90])


@pytest.mark.parametrize("causal", [True, False])
def test_strides(causal: bool) -> None:
    """Slices of one projection, columns apart, expanded heads, negated views, windows, and a gradient of stride 0."""
    qkv = torch.randn(2, 50, 3, 4, 16)
    sliced = list(qkv.permute(2, 0, 3, 1, 4))
    apart = [x[..., ::2] for x in torch.randn(3, 2, 4, 50, 32)]
    expanded = [torch.randn(2, 1, 50, 16).expand(-1, 4, -1, -1) for _ in range(3)]
    negated = [torch.complex(x, x).conj().imag for x in sliced]
    assert negated[0].is_neg()
    windows = [torch.randn(2, 4, 50 + width - 1).unfold(2, width, 1) for width in (70, 70, 64)]  # wider than long
    assert torch.empty_like(windows[0]).stride(-1) != 1
    for inputs in (sliced, apart, expanded, negated, windows):
        leaves = [x.detach().requires_grad_() for x in inputs]
        results = []
        for name in ("cpu", "reference"):
            o = linear_attention(*leaves, causal=causal, backend=name)
            results.append([o, *torch.autograd.grad(o.sum(), leaves)])
        assert all(relative(ours, theirs) < 1e-5 for ours, theirs in zip(*results, strict=True))
    assert linear_attention(*sliced, causal=causal, backend="cpu").transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("causal", [True, False])
def test_compiles_to_one_graph(causal: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(linear_attention, fullgraph=True, backend="aot_eager")
    leaves = [x.requires_grad_() for x in draw(2, 2, 100, 16, 24, positive=True)]
    real, results = key_mask("left", 2, 100), []
    for fn in (linear_attention, compiled):
        o = fn(*leaves, causal=causal, normalize=True, key_mask=real, backend="cpu")
        results.append([o, *grads([o], leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("causal", [True, False])
def test_operators_are_declared_rightly(causal: bool) -> None:
    q, k, v = (x.requires_grad_() for x in draw(2, 2, 40, 8, 9))
    S, z = torch.randn(2, 2, 8, 9, requires_grad=True), torch.rand(2, 2, 8, requires_grad=True)
    masks = key_mask("inner", 2, 40), segments(2, 40) if causal else None
    inputs = q, k, v, *masks, S, z, causal, True, "", None, None, None
    tests = "test_schema", "test_faketensor", "test_autograd_registration"
    import_module("linnet.ops.cpu.linear")  # declares it; otherwise the first use does
    torch.library.opcheck(torch.ops.linnet.cpu_linear.default, inputs, test_utils=tests)


def test_peak_memory_is_the_floor() -> None:
    """Output and three gradients are what forward and backward must hold."""
    assert memory_over_floor("linear_attention") < 1.05


def test_what_the_kernels_do_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit choice that is impossible is an error; no choice takes the next best."""
    x, decay = torch.randn(1, 2, 5, 8), torch.zeros(2)
    cases = [
        ((x.double(),) * 3, {}, "float64"),
        ((x[..., :4],) * 3, {}, "widths are 4 and 4"),
        ((x, x, torch.randn(1, 2, 5, 257)), {}, "8 to 256"),
        ((x,) * 3, {"log_decay": decay}, "log_decay"),
        ((x.to("meta"),) * 3, {}, "meta"),
    ]
    for inputs, options, message in cases:
        with pytest.raises(UnsupportedError, match=message) as error:
            linear_attention(*inputs, **options, backend="cpu")
        assert "\n" not in str(error.value)
        assert linear_attention(*inputs, **options).shape == inputs[2].shape
    monkeypatch.setenv("LINNET_BACKEND", "cpu")
    with pytest.raises(UnsupportedError, match="LINNET_BACKEND 'cpu' cannot run this linear_attention: tensors are"):
        linear_attention(*cases[0][0])
    assert torch.equal(linear_attention(x, x, x), linear_attention(x, x, x, backend="cpu"))
