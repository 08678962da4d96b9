"""The CPU kernels of block_attention equal the dense reference in values and gradients, at any shape and mask."""

import random

import pytest
import torch

from linnet import create_attention, create_mixer
from linnet.errors import UnsupportedError
from linnet.ops import block_attention, hashing, reference
from linnet.ops.backend import no_cpu_backend
from linnet.ops.block import block_kernel_ids
from linnet.ops.cpu import block as on_cpu
from linnet.ops.masks import layout_of_masks
from tests.ops.cases import MASKS, grads, key_mask, memory_over_floor, relative, segments, specified

pytestmark = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")
WIDTHS = [(8, 8), (16, 12), (9, 33), (64, 64), (70, 20), (256, 40)]
KINDS = ("softmax", "rela")


def draw(B: int, H: int, N: int, D: int, E: int) -> list[torch.Tensor]:
    """Queries, keys and values; some of them (B,N,H,.) in memory."""
    made = []
    for width in (D, D, E):
        swapped = random.random() < 0.5
        made.append(torch.randn(B, N, H, width).transpose(1, 2) if swapped else torch.randn(B, H, N, width))
    return made


def trial(N: int, w: int, kind: str, causal: bool, mask: str | None, packed: bool, scale: float | None = None) -> None:
    """Values and gradients of the kernels in float32 against the reference in float64."""
    B, H, (D, E) = random.choice([1, 2, 3]), random.choice([1, 2, 5]), random.choice(WIDTHS)
    leaves, real, ids = draw(B, H, N, D, E), key_mask(mask, B, N), segments(B, N) if packed else None
    keep, results = specified(real, ids, B, N), []
    options = {"block": w, "kind": kind, "causal": causal, "key_mask": real, "segments": ids, "scale": scale}
    for fn, dtype in ((reference.block_attention, torch.float64), (block_attention, torch.float32)):
        inputs = [x.detach().to(dtype).requires_grad_() for x in leaves]
        o = fn(*inputs, **options, backend=None if dtype == torch.float64 else "cpu")
        assert o.isfinite().all()
        o = o.double() * keep
        results.append([o, *grads([o], inputs)])
    least = 0.1 * max(float(x.abs().max()) for x in results[0][1:])  # one that is 0 is so but for the others' rounding
    for theirs, ours in zip(*results, strict=True):
        assert float((ours - theirs).detach().abs().max()) <= 1e-5 * max(float(theirs.detach().abs().max()), least)


@pytest.mark.parametrize("N,w", [(1, 4), (7, 4), (100, 16), (33, 1), (150, 64), (70, 100)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
def test_equals_reference(N: int, w: int, kind: str, causal: bool) -> None:
    random.seed(N)
    for mask in MASKS:
        for packed in (False, True):
            trial(N, w, kind, causal, mask, packed)


@pytest.mark.parametrize("packed", [False, True])
def test_padding_after_the_last_token_is_left_out_but_a_masked_token_inside_a_row_is_not(packed: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 24, 8) for _ in range(3))
    real = torch.ones(1, 24, dtype=torch.bool)
    real[0, [3, 10, 11, 21, 22, 23]] = False  # block 0 and, of two segments, the first end so, and the row
    ids = (torch.arange(24) >= 12).long()[None] if packed else None
    options = {"block": 4, "causal": False, "key_mask": real, "segments": ids}
    o, theirs = (fn(q, k, v, **options) for fn in (block_attention, reference.block_attention))
    assert relative(o[:, :, :10], theirs[:, :, :10]) < 1e-5
    assert o[:, :, 21:].abs().max() == 0 < theirs[:, :, 21:].abs().max()
    assert (o[:, :, 10:12].abs().max() == 0) == packed


@pytest.mark.parametrize("seed", range(30))
def test_fuzz(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random shapes, switches and threads."""
    random.seed(seed)
    torch.manual_seed(seed)
    monkeypatch.setattr(on_cpu, "SMALL", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(random.choice([1, 2, 5]))
    try:
        sizes = random.randint(1, 300), random.randint(1, 150)
        choices = random.choice(KINDS), random.random() < 0.5, random.choice(MASKS), random.random() < 0.5
        trial(*sizes, *choices, scale=random.choice([None, 0.3, -1]))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("N,w,p", [(100, 16, 0.1), (70, 100, 0.5), (1100, 1100, 0.2)])
def test_dropout_equals_the_reference_with_the_same_draws(kind: str, causal: bool, N: int, w: int, p: float) -> None:
    """In values and gradients; the draws are those of `linnet.ops.hashing` for head, query and key."""
    B, H, seed, n = 2, 2, torch.tensor(7), torch.arange(N)
    leaves, real = draw(B, H, N, 16, 9), key_mask("right", B, N)
    where = layout_of_masks(B, N, real, None, real.device)
    kept = hashing.hash_coordinates(seed, torch.arange(B * H).view(B, H, 1, 1), n[:, None], n) >= int(p * 2**32)
    assert abs(float(kept.float().mean()) - (1 - p)) < 0.02
    keep, results = specified(real, None, B, N), []
    for dtype in (torch.float64, torch.float32):
        q, k, v = inputs = [x.detach().to(dtype).requires_grad_() for x in leaves]
        if dtype == torch.float64:
            A = reference.reference_block_weights(q, k, where, w, kind, causal)
            o = A * kept / (1 - p) @ v
        else:
            ids = block_kernel_ids(where, w, B)
            o = on_cpu.block(q, k, v, where.real, ids, seed, w, kind == "rela", causal, 16**-0.5, p)
        o = o.double() * keep
        results.append([o, *grads([o], inputs)])
    for theirs, ours in zip(*results, strict=True):
        assert relative(ours, theirs) < 1e-5


@pytest.mark.parametrize("name", ["softmax", "diag"])
def test_mechanisms_drop_on_the_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training: the same seed gives the same result with any number of threads, and the mean is unbiased."""
    mixer, x, found = create_mixer(name, width=32, heads=2, causal=False, dropout=0.3), torch.randn(1, 90, 32), []
    monkeypatch.setattr(on_cpu, "SMALL", 0)
    usual = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(3)
        found.append(mixer(x))
    torch.set_num_threads(usual)
    assert found[0].equal(found[1])
    assert not found[0].equal(mixer(x))
    many = torch.stack([mixer(x) for _ in range(300)]).mean(dim=0)
    torch.testing.assert_close(many, mixer.eval()(x), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("name,kind", [("softmax", "softmax"), ("diag", "softmax"), ("diag", "rela")])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mask", [None, "left", "right", "inner"])
@pytest.mark.parametrize("packed", [False, True])
def test_every_backend_drops_the_same_weights(
    name: str, kind: str, causal: bool, mask: str | None, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"dropout": 0.3} if name == "softmax" else {"dropout": 0.3, "kind": kind, "block": 16}
    core = create_attention(name, heads=2, head_dim=8, causal=causal, **options)
    leaves, real, ids = draw(2, 2, 75, 8, 8), key_mask(mask, 2, 75), segments(2, 75) if packed else None
    keep, found = specified(real, ids, 2, 75), []
    for backend in ("cpu", "torch"):
        monkeypatch.setenv("LINNET_BACKEND", backend)
        torch.manual_seed(5)
        inputs = [x.detach().clone().requires_grad_() for x in leaves]
        o = core(*inputs, key_mask=real, segments=ids) * keep
        found.append([o, *grads([o], inputs), torch.rand(1)])
    for one, other in zip(*found, strict=True):
        assert relative(one, other) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [True, False])
def test_masked_tokens_and_the_future_are_never_read(kind: str, causal: bool) -> None:
    q, k, v = draw(2, 2, 70, 16, 9)
    real = key_mask("inner", 2, 70)
    hidden = ~real[:, None, :, None].expand(-1, 2, -1, 1)
    options = {"block": 16, "kind": kind, "causal": causal, "key_mask": real, "backend": "cpu"}
    clean = block_attention(q, *(x.masked_fill(hidden, 0) for x in (k, v)), **options)
    dirty = [x.masked_fill(hidden, torch.nan).requires_grad_() for x in (k, v)]
    o = block_attention(q, *dirty, **options)
    assert torch.equal(clean, o)
    for dx in torch.autograd.grad(o.sum(), dirty):
        assert dx.isfinite().all() and not dx[hidden.expand_as(dx)].any()
    if causal:
        k, v = k.clone(), v.clone()
        k[:, :, 40:], v[:, :, 40:] = 1e30, 1e30
        assert torch.equal(block_attention(q, k, v, **options)[:, :, :40], o[:, :, :40])


@pytest.mark.parametrize("scale", [1e-6, 30.0, 1e4])
def test_scores_of_any_size(scale: float) -> None:
    q, k, v = draw(2, 2, 90, 16, 16)
    for kind in KINDS:
        pair = [block_attention(q * scale, k, v, kind=kind, backend=name) for name in ("cpu", "reference")]
        assert relative(*pair) < 1e-4


def test_strides_and_a_gradient_of_stride_0() -> None:
    sliced = list(torch.randn(2, 50, 3, 4, 16).permute(2, 0, 3, 1, 4))
    apart = [x[..., ::2] for x in torch.randn(3, 2, 4, 50, 32)]
    expanded = [torch.randn(2, 1, 50, 16).expand(-1, 4, -1, -1) for _ in range(3)]
    for inputs in (sliced, apart, expanded):
        leaves, results = [x.detach().requires_grad_() for x in inputs], []
        for name in ("cpu", "reference"):
            o = block_attention(*leaves, block=8, backend=name)
            results.append([o, *torch.autograd.grad(o.sum(), leaves)])
        assert all(relative(ours, theirs) < 1e-5 for ours, theirs in zip(*results, strict=True))
    assert block_attention(*sliced, backend="cpu").transpose(1, 2).is_contiguous()


def test_compiles_to_one_graph_and_is_declared_rightly() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(block_attention, fullgraph=True, backend="aot_eager")
    leaves, real, results = [x.requires_grad_() for x in draw(2, 2, 100, 16, 24)], key_mask("left", 2, 100), []
    for fn in (block_attention, compiled):
        o = fn(*leaves, block=16, key_mask=real, backend="cpu")
        results.append([o, *grads([o], leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    inputs = *leaves, real, segments(2, 100), torch.tensor(1), 16, True, False, 0.25, 0.1
    tests = "test_schema", "test_faketensor", "test_autograd_registration"
    torch.library.opcheck(torch.ops.linnet.cpu_block.default, inputs, test_utils=tests)


def test_peak_memory_is_the_floor() -> None:
    """Output and three gradients are what forward and backward must hold."""
    assert memory_over_floor("block_attention") < 1.05


def test_what_the_kernels_do_not_take() -> None:
    x = torch.randn(1, 2, 5, 8)
    long = torch.randn(1, 1, 1100, 8)
    cases = [((x.double(),) * 3, {}, "float64"), ((x[..., :4],) * 3, {}, "widths are 4")]
    for inputs, options, message in [*cases, ((long,) * 3, {"block": 1025}, "block is 1025, kernels take up to 1024")]:
        with pytest.raises(UnsupportedError, match=message):
            block_attention(*inputs, **options, backend="cpu")
        assert block_attention(*inputs, **options).shape == inputs[2].shape
