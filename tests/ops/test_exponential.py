"""exp_attention equals its dense twin at any scale of the features, and never reads the future."""

import itertools

import pytest
import torch
from torch import Tensor

from linnet.errors import InputError, UnsupportedError
from linnet.ops import exp_attention, reference
from linnet.ops.exponential import _forward
from tests.ops.cases import MASKS, grads, key_mask, memory_over_floor, relative, segments

INF = torch.inf
KINDS = list(itertools.product((True, False), (False, True)))
CASES = list(itertools.product((True, False), MASKS, (False, True), (False, True)))


def draw(N: int, deviation: float = 2.0, B: int = 2, H: int = 2, D: int = 5, E: int = 3) -> tuple[Tensor, ...]:
    """Queries, keys and values that float32 holds exactly."""
    q, k = (deviation * torch.randn(B, H, N, D) for _ in range(2))
    return q.double(), k.double(), torch.randn(B, H, N, E).double()


def some_state(B: int = 2, H: int = 2, D: int = 5, E: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    S, z, m = torch.randn(B, H, D, E), torch.rand(B, H, D) + 0.5, torch.randn(B, H, D)
    return S.double(), z.double(), m.double()


@pytest.mark.parametrize("N", [1, 7, 63, 64, 100, 257])
@pytest.mark.parametrize("causal,mask,packed,stateful", CASES)
def test_equals_reference(N: int, causal: bool, mask: str | None, packed: bool, stateful: bool) -> None:
    q, k, v = draw(N)
    state = some_state() if stateful else None
    leaves = [x.requires_grad_() for x in (q, k, v, *(state[:2] if state else ()))]
    ids, real = segments(2, N) if packed else None, key_mask(mask, 2, N)
    results = []
    for fn in (reference.exp_attention, exp_attention):
        o, (S, z, m) = fn(q, k, v, causal, real, ids, state, return_state=True)
        results.append([o, S, z, m, *grads([o, S, z], leaves)])
    for theirs, ours in zip(*results, strict=True):
        assert relative(ours, theirs) < 1e-10


@pytest.mark.parametrize("deviation", [0.5, 1, 2, 5, 10, 20])
@pytest.mark.parametrize("causal,packed", KINDS)
def test_float32_is_exact_at_any_scale(deviation: float, causal: bool, packed: bool) -> None:
    inputs = draw(200, deviation, 1, 2, 16, 8)
    ids = segments(1, 200) // 9 if packed else None
    results = []
    for fn, dtype in ((reference.exp_attention, torch.float64), (exp_attention, torch.float32)):
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        o = fn(*leaves, causal=causal, segments=ids)
        results.append([o.double(), *grads([o.double()], leaves)])
    for theirs, ours in zip(*results, strict=True):
        assert relative(ours.double(), theirs) < 1e-5
    rows = (results[0][0] - results[1][0]).abs().amax(-1) / results[0][0].abs().amax(-1)
    assert rows.max() < 2e-5


@pytest.mark.parametrize("causal,packed", KINDS)
def test_gradcheck(causal: bool, packed: bool) -> None:
    leaves = [x.requires_grad_() for x in draw(11, 1.0, 1, 1, 2, 2)]
    S, z, m = some_state(1, 1, 2, 2)
    ids, real = (segments(1, 11) if packed else None), key_mask("inner", 1, 11)

    def f(*x: Tensor) -> tuple[Tensor, ...]:
        o, (S, z, top) = exp_attention(*x[:3], causal, real, ids, (x[3], x[4], m), return_state=True)
        return o, S * top.exp()[..., None], z * top.exp()  # what a state stands for, whatever its top

    assert torch.autograd.gradcheck(f, (*leaves, S.requires_grad_(), z.requires_grad_()))


@pytest.mark.parametrize("causal", [True, False])
def test_segments_are_separate_runs(causal: bool) -> None:
    q, k, v = draw(150, 5.0, B=1)
    ids = torch.tensor([0] * 3 + [7] * 70 + [7] * 0 + [1] * 1 + [7] * 76)[None]
    whole, end = exp_attention(q, k, v, causal, segments=ids, return_state=True)
    parts = [
        exp_attention(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], causal, return_state=True)
        for a, b in ((0, 3), (3, 73), (73, 74), (74, 150))
    ]
    assert relative(whole, torch.cat([o for o, _ in parts], dim=2)) < 1e-12
    assert all(relative(a, b) < 1e-12 for a, b in zip(end, parts[-1][1], strict=True))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_inert(causal: bool, side: str) -> None:
    """Also where it holds NaN; a masked value is never read."""
    q, k, v = draw(90, 5.0)
    plain, end = exp_attention(q, k, v, causal, return_state=True)
    pad = (0, 0, 40, 0) if side == "left" else (0, 0, 0, 40)
    padded = [torch.nn.functional.pad(x, pad, value=fill) for x, fill in ((q, 3.0), (k, torch.nan), (v, torch.nan))]
    real = torch.nn.functional.pad(torch.ones(2, 90, dtype=torch.bool), pad[2:])
    o, kept = exp_attention(*padded, causal=causal, key_mask=real, return_state=True)
    assert relative(o[:, :, 40:] if side == "left" else o[:, :, :90], plain) < 1e-12
    assert all(relative(a, b) < 1e-12 for a, b in zip(kept, end, strict=True))


@pytest.mark.parametrize("sizes", [(1, 99), (63, 37), (64, 36), (65, 35), (99, 1), (90,) + (1,) * 10])
def test_a_state_continues_a_row(sizes: tuple[int, ...]) -> None:
    q, k, v = draw(100, 10.0)
    whole, end = exp_attention(q, k, v, return_state=True)
    parts, state = [], None
    for a, b, c in zip(*(x.split(sizes, dim=2) for x in (q, k, v)), strict=True):
        o, state = exp_attention(a, b, c, state=state, return_state=True)
        parts.append(o)
    assert relative(torch.cat(parts, dim=2), whole) < 1e-12
    assert all(relative(a, b) < 1e-12 for a, b in zip(state, end, strict=True))


@pytest.mark.parametrize("t", [1, 3, 62, 64, 77, 128, 149])
@pytest.mark.parametrize("kind", ["shuffle", "huge", "one huge key", "no key", "nan key"])
def test_the_future_is_never_read(t: int, kind: str) -> None:
    q, k, v = (x.float() for x in draw(150, 20.0))
    before = exp_attention(q, k, v)
    q, k, v = q.clone(), k.clone(), v.clone()
    if kind == "shuffle":
        q[:, :, t:], k[:, :, t:], v[:, :, t:] = (x.float()[:, :, t:] for x in draw(150, 20.0))
    elif kind == "huge":
        q[:, :, t:], k[:, :, t:], v[:, :, t:] = 1e30, 1e30, -1e30
    else:
        k[:, :, t, 0] = {"one huge key": 60 * 20.0, "no key": -INF, "nan key": torch.nan}[kind]
    after = exp_attention(q, k, v)
    assert torch.equal(before[:, :, :t], after[:, :, :t])
    if kind == "one huge key":  # which from then on is all there is to see
        assert relative(after[:, :, t:], v[:, :, t : t + 1].expand_as(after[:, :, t:])) < 1e-6


@pytest.mark.parametrize("causal,packed", KINDS)
def test_no_key_gives_zeros_and_no_nan(causal: bool, packed: bool) -> None:
    """Features of -inf are legal: a channel, a key, a query, everything."""
    q, k, v = draw(70, 1.0)
    q[0, 0, :, 1], k[0, 0, :, 2], k[0, 1, :9], q[1, 0, 30] = -INF, -INF, -INF, -INF
    k[1, 1], q[0, 0, 60, 0:] = -INF, -INF
    leaves = [x.requires_grad_() for x in (q, k, v)]
    ids, real = (segments(2, 70) if packed else None), torch.arange(70)[None] >= torch.tensor([[5], [0]])
    results = []
    for fn in (reference.exp_attention, exp_attention):
        o = fn(*leaves, causal=causal, key_mask=real, segments=ids)
        results.append([o, *grads([o], leaves)])
    assert all(relative(ours, theirs) < 1e-10 for theirs, ours in zip(*results, strict=True))
    assert not results[1][0][1, 1].any() and not results[1][0][1, 0, 30].any()
    if causal:
        assert not results[1][0][0, 1, :9].any()


@pytest.mark.parametrize("causal,packed", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, causal: bool, packed: bool) -> None:
    leaves = [x.to(dtype).requires_grad_() for x in draw(300, 5.0, 1, 2, 8, 8)]
    ids = segments(1, 300) // 9 if packed else None
    with torch.autocast("cpu", dtype=torch.bfloat16):  # changes nothing
        o, (S, z, m) = exp_attention(*leaves, causal=causal, segments=ids, return_state=True)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    exact = reference.exp_attention(*wide, causal=causal, segments=ids)
    assert o.dtype == dtype and {S.dtype, z.dtype, m.dtype} == {torch.float32}
    ulp = torch.finfo(dtype).eps
    assert relative(o.double(), exact) < 2 * ulp
    for ours, theirs in zip(grads([o.double()], leaves), grads([exact], wide), strict=True):
        assert relative(ours.double(), theirs) < 8 * ulp


@pytest.mark.parametrize("causal", [True, False])
def test_strides_and_expanded_gradients(causal: bool) -> None:
    q, k, v = (torch.randn(2, 70, 3, 4, dtype=torch.float64).transpose(1, 2).requires_grad_() for _ in range(3))
    o = exp_attention(q, k, v, causal)
    assert o.stride() == v.stride()
    ours = torch.autograd.grad(o.sum(), (q, k, v))  # the gradient is expanded: stride 0
    theirs = torch.autograd.grad(reference.exp_attention(q, k, v, causal).sum(), (q, k, v))
    assert relative(ours[2], theirs[2]) < 1e-10
    assert all((a - b).abs().max() < 1e-10 for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("causal,packed", KINDS)
def test_compiles_to_one_graph(causal: bool, packed: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(exp_attention, fullgraph=True, backend="aot_eager")
    leaves = [x.float().requires_grad_() for x in draw(100)]
    real, ids = key_mask("left", 2, 100), segments(2, 100) if packed else None
    results = []
    for fn in (exp_attention, compiled):
        o, (S, z, _) = fn(*leaves, causal=causal, key_mask=real, segments=ids, return_state=True)
        results.append([o, S, z, *grads([o, S, z], leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_ops_keep_their_promises_to_the_compiler() -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in draw(70))
    S, z, m = some_state()
    ops, tests = torch.ops.linnet, ("test_schema", "test_faketensor", "test_autograd_registration")
    for causal, run in ((True, segments(2, 70)), (False, None)):
        inputs = q, k, v, key_mask("inner", 2, 70), run, S, z, m
        torch.library.opcheck(ops.exp_attention.default, (*inputs, causal), test_utils=tests)
        o, den, r, S_, z_, m_ = (x.detach() for x in _forward(*inputs, causal))
        gradients = torch.randn_like(o), torch.randn_like(den), S_, z_
        given = (*gradients, *inputs, causal, o, den, r, m_)
        torch.library.opcheck(ops.exp_attention_backward.default, given, test_utils=tests)


def test_peak_memory_is_near_the_floor() -> None:
    """Output and three gradients are the floor of forward and backward, and 1.1 times that is allowed."""
    assert memory_over_floor("exp_attention") < 1.1


@pytest.mark.parametrize(
    "change,message",
    [
        ({"q": torch.zeros(2, 3, 8)}, "four axes"),
        ({"q": torch.zeros(2, 3, 9, 4)}, "must be the same"),
        ({"k": torch.zeros(2, 3, 8, 5)}, "same width"),
        ({"v": torch.zeros(2, 3, 8, 4, dtype=torch.float64)}, "the same type"),
        ({"key_mask": torch.ones(2, 7)}, "key_mask has shape (2, 7)"),
        ({"segments": torch.ones(2, 8)}, "integers"),
        ({"state": (torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4))}, "state holds"),
        ({"backend": "torhc"}, "did you mean 'torch'"),
        ({"q": torch.zeros(2, 4, 8, 4), "causal": False}, "must divide the heads of q"),
        ({"q": torch.zeros(2, 6, 8, 4), "causal": False, "segments": torch.zeros(2, 8).long()}, "segments is given"),
    ],
)
def test_bad_input_is_one_line(change: dict, message: str) -> None:
    arguments = {"q": torch.zeros(2, 3, 8, 4), "k": torch.zeros(2, 3, 8, 4), "v": torch.zeros(2, 3, 8, 5)} | change
    q, k, v = (arguments.pop(name) for name in "qkv")
    with pytest.raises(InputError) as error:
        exp_attention(q, k, v, **arguments)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("T,N,G", [(7, 100, 3), (100, 7, 3), (1, 9, 3), (9, 1, 3), (7, 40, 1), (40, 40, 1)])
def test_queries_of_another_sequence(T: int, N: int, G: int, mask: str | None, stateful: bool) -> None:
    """Other lengths and shared heads equal the reference, which equals the reference of repeated heads."""
    q, k, v = (20 * torch.randn(2, h, n, 4, dtype=torch.float64) for h, n in ((3, T), (G, N), (G, N)))
    S, z, m = torch.randn(2, G, 4, 4), 1 + torch.rand(2, G, 4), 20 * torch.randn(2, G, 4)
    leaves = [x.double().requires_grad_() for x in ((q, k, v, S, z) if stateful else (q, k, v))]
    results = []
    for fn, times in ((reference.exp_attention, 3 // G), (reference.exp_attention, 1), (exp_attention, 1)):
        k_, v_, *before = (x.repeat_interleave(times, dim=1) for x in (*leaves[1:], m.double()))
        state = tuple(before) if stateful else None
        o, after = fn(leaves[0], k_, v_, causal=False, key_mask=key_mask(mask, 2, N), state=state, return_state=True)
        assert o.shape == (2, 3, T, 4) and after[0].shape == (2, G * times, 4, 4)
        results.append([o, *(x.repeat_interleave(3 // G // times, dim=1) for x in after), *grads([o], leaves)])
    for repeated, theirs, ours in zip(*results, strict=True):
        assert relative(theirs, repeated) < 1e-10 and relative(ours, theirs) < 1e-10


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e10])
def test_queries_of_another_sequence_at_any_scale(scale: float) -> None:
    """Finite, in masked and infinite features, too; a row without a real key gives zeros."""
    q, k, v = scale * torch.randn(2, 1, 5, 4), scale * torch.randn(2, 1, 9, 4), torch.randn(2, 1, 9, 4)
    k[:, :, 3], v[0] = -torch.inf, torch.nan
    o = exp_attention(q, k, v, causal=False, key_mask=key_mask("all", 2, 9))
    assert o.isfinite().all() and not o[0].any() and o[1].any()
    exact = reference.exp_attention(q[1:].double(), k[1:].double(), v[1:].double(), causal=False)
    assert scale > 1e5 or relative(o[1:].double(), exact) < 1e-5


def test_backends() -> None:
    q, k, v = draw(9)
    assert torch.equal(exp_attention(q, k, v, backend="reference"), reference.exp_attention(q, k, v))
    with pytest.raises(UnsupportedError, match="'triton' cannot run this exp_attention"):
        exp_attention(q, k, v, backend="triton")
