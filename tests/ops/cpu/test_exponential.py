"""The CPU kernels of exp_attention equal the dense reference at any scale, and never read the future."""

import random
from importlib import import_module

import pytest
import torch
from torch import Tensor

import linnet
from linnet.ops import exp_attention, reference
from linnet.ops.backend import no_cpu_backend
from linnet.ops.cpu import arguments
from tests.ops.cases import MASKS, grads, key_mask, memory_over_floor, relative, segments

pytestmark = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")
INF = torch.inf
WIDTHS = [(8, 8), (16, 12), (9, 33), (64, 64), (70, 20), (24, 256)]


def draw(N: int, deviation: float = 2.0, B: int = 2, H: int = 2, D: int = 16, E: int = 12) -> list[Tensor]:
    """Queries, keys and values; some of them (B,N,H,.) in memory."""
    made = []
    for width, scale in ((D, deviation), (D, deviation), (E, 1.0)):
        x = torch.randn(B, N, H, width).transpose(1, 2) if random.random() < 0.5 else torch.randn(B, H, N, width)
        made.append(x * scale)
    return made


def compare(leaves: list[Tensor], state: list[Tensor], bound: float = 1e-5, **arguments: object) -> None:
    """Values, state and gradients of the kernels in float32 against the reference in float64."""
    results = []
    for fn, dtype in ((reference.exp_attention, torch.float64), (exp_attention, torch.float32)):
        inputs = [x.detach().to(dtype).requires_grad_() for x in (*leaves, *state[:2])]
        kept = (*inputs[3:], state[2].to(dtype)) if state else None
        backend = None if dtype == torch.float64 else "cpu"
        o, (S, z, m) = fn(*inputs[:3], **arguments, state=kept, return_state=True, backend=backend)
        out = [x.double() for x in (o, S, z)]
        results.append(([*out, m.double()], grads(out, inputs)))
    (values, slopes), (our_values, our_slopes) = results
    assert all(relative(ours, theirs) < bound for ours, theirs in zip(our_values, values, strict=True))
    least = 0.1 * max(float(x.abs().max()) for x in slopes)  # one that is 0 is so but for the rounding of the others
    for ours, theirs in zip(our_slopes, slopes, strict=True):
        assert float((ours - theirs).abs().max()) <= bound * max(float(theirs.abs().max()), least)


def trial(N: int, causal: bool, mask: str | None, packed: bool, stateful: bool) -> None:
    B, H, (D, E) = random.choice([1, 2, 3]), random.choice([1, 2, 5]), random.choice(WIDTHS)
    state = [torch.randn(B, H, D, E), torch.rand(B, H, D) + 0.5, torch.randn(B, H, D)] if stateful else []
    masks = {"key_mask": key_mask(mask, B, N), "segments": segments(B, N) if packed else None}
    compare(draw(N, 2.0, B, H, D, E), state, causal=causal, **masks)


@pytest.mark.parametrize("N", [1, 7, 33, 100, 257])
@pytest.mark.parametrize("causal", [True, False])
def test_equals_reference(N: int, causal: bool) -> None:
    random.seed(N)
    for mask in MASKS:
        for packed in (False, True):
            for stateful in (False, True):
                trial(N, causal, mask, packed, stateful)


@pytest.mark.parametrize("seed", range(20))
def test_fuzz(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random shapes, switches and threads."""
    random.seed(seed)
    torch.manual_seed(seed)
    monkeypatch.setattr(arguments, "SMALL", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(random.choice([1, 2, 5]))
    try:
        flags = [random.random() < 0.5 for _ in range(3)]
        trial(random.randint(1, 200), flags[0], random.choice(MASKS), flags[1], flags[2])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("deviation", [0.5, 5, 10, 20])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_is_exact_at_any_scale(deviation: float, causal: bool, packed: bool) -> None:
    compare(draw(200, deviation), [], causal=causal, segments=segments(2, 200) // 9 if packed else None)


@pytest.mark.parametrize("t", [1, 31, 32, 33, 77, 149])
@pytest.mark.parametrize("kind", ["shuffle", "huge", "one huge key", "no key", "nan key"])
def test_the_future_is_never_read(t: int, kind: str) -> None:
    """Not even by rounding."""
    q, k, v = draw(150, 20.0)
    before = exp_attention(q, k, v, backend="cpu")
    q, k, v = q.clone(), k.clone(), v.clone()
    if kind == "shuffle":
        q[:, :, t:], k[:, :, t:], v[:, :, t:] = (x[:, :, t:] for x in draw(150, 20.0))
    elif kind == "huge":
        q[:, :, t:], k[:, :, t:], v[:, :, t:] = 1e30, 1e30, -1e30
    else:
        k[:, :, t, 0] = {"one huge key": 60 * 20.0, "no key": -INF, "nan key": torch.nan}[kind]
    after = exp_attention(q, k, v, backend="cpu")
    assert torch.equal(before[:, :, :t], after[:, :, :t])
    if kind == "one huge key":  # which from then on is all there is to see
        assert relative(after[:, :, t:], v[:, :, t : t + 1].expand_as(after[:, :, t:])) < 1e-6


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_no_key_gives_zeros_and_no_nan(causal: bool, packed: bool) -> None:
    """Features of -inf are legal: a channel, a key, a query, everything; padding may hold NaN."""
    q, k, v = draw(70, 1.0)
    q[0, 0, :, 1], k[0, 0, :, 2], k[0, 1, :9], q[1, 0, 30] = -INF, -INF, -INF, -INF
    k[1, 1], q[0, 0, 60] = -INF, -INF
    ids, real = (segments(2, 70) if packed else None), torch.arange(70)[None] >= torch.tensor([[5], [0]])
    compare([q, k, v], [], causal=causal, key_mask=real, segments=ids)
    o = exp_attention(q, k, v, causal=causal, key_mask=real, segments=ids, backend="cpu")
    assert not o[1, 1].any() and not o[1, 0, 30].any()
    hidden = ~real[:, None, :, None].expand(-1, 2, -1, 1)
    dirty = [x.masked_fill(hidden, torch.nan).requires_grad_() for x in (k, v)]
    again = exp_attention(q, *dirty, causal=causal, key_mask=real, segments=ids, backend="cpu")
    assert torch.equal(o, again)
    for dx in torch.autograd.grad(again.sum(), dirty):
        assert dx.isfinite().all() and not dx[hidden.expand_as(dx)].any()


@pytest.mark.parametrize("sizes", [(1, 99), (63, 37), (65, 35), (90,) + (1,) * 10])
def test_a_state_continues_a_row(sizes: tuple[int, ...]) -> None:
    q, k, v = draw(100, 10.0)
    whole, end = exp_attention(q, k, v, return_state=True, backend="cpu")
    parts, state = [], None
    for a, b, c in zip(*(x.split(sizes, dim=2) for x in (q, k, v)), strict=True):
        o, state = exp_attention(a, b, c, state=state, return_state=True, backend="cpu")
        parts.append(o)
    assert relative(torch.cat(parts, dim=2), whole) < 1e-6
    assert all(relative(a, b) < 1e-6 for a, b in zip(state, end, strict=True))


@pytest.mark.parametrize("causal", [True, False])
def test_compiles_to_one_graph(causal: bool) -> None:
    torch._dynamo.reset()
    core = linnet.create_attention("lln", heads=2, head_dim=16, causal=causal)
    compiled = torch.compile(core, fullgraph=True, backend="aot_eager")
    leaves, results = [x.requires_grad_() for x in draw(100, 1.0)], []
    for fn in (core, compiled):
        o = fn(*leaves, key_mask=key_mask("left", 2, 100))
        results.append([o, *grads([o], leaves)])
    assert all(relative(a, b) < 1e-6 for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("causal", [True, False])
def test_operators_are_declared_rightly(causal: bool) -> None:
    q, k, v = (x.requires_grad_() for x in draw(40))
    S, z = torch.randn(2, 2, 16, 12, requires_grad=True), torch.rand(2, 2, 16, requires_grad=True)
    scales, masks = (torch.rand(2, 2, 1, 1), torch.rand(2, 2, 1, 1)), (key_mask("inner", 2, 40), segments(2, 40))
    inputs = q, k, v, *scales, *masks, S, z, torch.randn(2, 2, 16), causal
    tests = "test_schema", "test_faketensor", "test_autograd_registration"
    import_module("linnet.ops.cpu.exponential")  # declares it; otherwise the first use does
    torch.library.opcheck(torch.ops.linnet.cpu_exponential.default, inputs, test_utils=tests)
    for whole in (False, True):
        sums = (q.detach(), inputs[5], whole)
        torch.library.opcheck(torch.ops.linnet.cpu_moments.default, sums, test_utils=tests[:2])


def test_peak_memory_is_near_the_floor() -> None:
    """Output and three gradients are what forward and backward must hold."""
    assert memory_over_floor("exp_attention") < 1.05


@pytest.mark.parametrize("D", [8, 20, 64, 67])
@pytest.mark.parametrize("masked", [False, True])
def test_moments_of_each_token_and_of_all(D: int, masked: bool) -> None:
    from linnet.ops.cpu.exponential import moments

    x = 1e3 + torch.randn(2, 40, 3, D).transpose(1, 2)
    real = torch.rand(2, 40) < 0.7 if masked else None
    y = x.double() if real is None else x.double() * real[:, None, :, None]
    wanted = y.sum(dim=3), y.square().sum(dim=3)
    for ours, exact in zip(moments(x, real, False), wanted, strict=True):
        assert torch.allclose(ours, exact, rtol=1e-13)
    for ours, exact in zip(moments(x, real, True), wanted, strict=True):
        assert ours.shape == (2, 3, 1)
        assert torch.allclose(ours, exact.sum(dim=2, keepdim=True), rtol=1e-13)
