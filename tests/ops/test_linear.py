"""linear_attention equals its dense twin in values and gradients, with every combination of options."""

import itertools

import pytest
import torch
from torch import Tensor

from linnet.errors import InputError, UnsupportedError
from linnet.ops import linear_attention, reference
from tests.ops.cases import MASKS, grads, key_mask, memory_over_floor, relative, segments

CASES = [
    case
    for case in itertools.product((True, False), (False, True), MASKS, (False, True), (False, True), (False, True))
    if case[0] or not (case[4] or (case[3] and case[5]))  # decay is causal; a packed bidirectional row has no state
]


def draw(N: int, normalize: bool, B: int = 2, H: int = 3, D: int = 4, E: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    q, k = (torch.randn(B, H, N, D, dtype=torch.float64) for _ in range(2))
    return (q.abs() if normalize else q), (k.abs() if normalize else k), torch.randn(B, H, N, E, dtype=torch.float64)


@pytest.mark.parametrize("N", [1, 7, 64, 100, 150])
@pytest.mark.parametrize("causal,normalize,mask,packed,decay,stateful", CASES)
def test_equals_reference(
    N: int, causal: bool, normalize: bool, mask: str | None, packed: bool, decay: bool, stateful: bool
) -> None:
    q, k, v = draw(N, normalize)
    B, H, _, D = q.shape
    state = (torch.randn(B, H, D, 5, dtype=torch.float64), torch.rand(B, H, D, dtype=torch.float64))[: 1 + normalize]
    log_decay = -0.1 * torch.rand(H, dtype=torch.float64) if decay else None
    leaves = [q, k, v, *([log_decay] if log_decay is not None else []), *(state if stateful else ())]
    for leaf in leaves:
        leaf.requires_grad_()
    returns = causal or not packed
    results = []
    ids, real = segments(B, N) if packed else None, key_mask(mask, B, N)
    for fn in (reference.linear_attention, linear_attention):
        out = fn(
            q, k, v, causal=causal, normalize=normalize, key_mask=real, segments=ids, log_decay=log_decay,
            state=state if stateful else None, return_state=returns,
        )  # fmt: skip
        out = [out[0], *out[1]] if returns else [out]
        results.append([*out, *grads(out, leaves)])
    for theirs, ours in zip(*results, strict=True):
        assert relative(ours, theirs) < 1e-10


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("T,N,G", [(7, 100, 6), (100, 7, 6), (1, 9, 6), (9, 1, 6), (7, 40, 1), (40, 40, 3), (9, 18, 3)])
def test_queries_of_another_sequence(T: int, N: int, G: int, normalize: bool, mask: str | None, stateful: bool) -> None:
    """Other lengths and shared heads equal the reference, which equals the reference of repeated heads."""
    H = 6
    q, _, _ = draw(T, normalize, H=H)
    _, k, v = draw(N, normalize, H=G)
    state = (torch.randn(2, G, 4, 5, dtype=torch.float64), torch.rand(2, G, 4, dtype=torch.float64))[: 1 + normalize]
    leaves = [x.requires_grad_() for x in (q, k, v, *(state if stateful else ()))]
    options = {"causal": False, "normalize": normalize, "key_mask": key_mask(mask, 2, N)}
    results = []
    for fn, times in ((reference.linear_attention, H // G), (reference.linear_attention, 1), (linear_attention, 1)):
        k_, v_, *before = (x.repeat_interleave(times, dim=1) for x in leaves[1:])
        o, after = fn(q, k_, v_, **options, state=tuple(before) if stateful else None, return_state=True)
        assert o.shape == (2, H, T, 5) and after[0].shape == (2, G * times, 4, 5)
        results.append([o, *grads([o], leaves)])
    for repeated, theirs, ours in zip(*results, strict=True):
        assert relative(theirs, repeated) < 1e-10 and relative(ours, theirs) < 1e-10


def test_a_mask_of_keys_never_masks_a_query_on_any_backend() -> None:
    """Where lengths are equal the kernels run: each query, also beside a masked key, reads all real keys."""
    q, k, v = (torch.rand(2, 3, 40, 8) for _ in range(3))
    options = {"causal": False, "normalize": True, "key_mask": key_mask("left", 2, 40)}
    assert relative(linear_attention(q, k, v, **options), reference.linear_attention(q, k, v, **options)) < 1e-5
    short = linear_attention(q[:, :, :5], k, v, **options)
    assert relative(short, linear_attention(q, k, v, **options)[:, :, :5]) < 1e-5
    with pytest.raises(UnsupportedError, match="'cpu' cannot run this linear_attention: q and k have different"):
        linear_attention(q[:, :, :5], k, v, backend="cpu", **options)


@pytest.mark.parametrize("normalize", [False, True])
def test_gradcheck(normalize: bool) -> None:
    q, k, v = (x.requires_grad_() for x in draw(70, normalize, B=1, H=1, D=2, E=2))
    log_decay = torch.tensor([-0.05], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *x: linear_attention(x[0], x[1], x[2], normalize=normalize, log_decay=x[3]), (q, k, v, log_decay)
    )


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("split", [1, 63, 64, 65, 99])
def test_a_state_continues_a_row(normalize: bool, split: int) -> None:
    q, k, v = draw(100, normalize)
    log_decay = torch.tensor([-0.1, 0.0, -0.01], dtype=torch.float64)
    whole, end = linear_attention(q, k, v, normalize=normalize, log_decay=log_decay, return_state=True)
    parts, state = [], None
    for tokens in (slice(0, split), slice(split, 100)):
        o, state = linear_attention(
            q[:, :, tokens], k[:, :, tokens], v[:, :, tokens],
            normalize=normalize, log_decay=log_decay, state=state, return_state=True,
        )  # fmt: skip
        parts.append(o)
    assert relative(torch.cat(parts, dim=2), whole) < 1e-12
    assert all(relative(a, b) < 1e-12 for a, b in zip(state, end, strict=True))


def test_the_future_is_never_read() -> None:
    q, k, v = (x.float() for x in draw(150, True))
    before = linear_attention(q, k, v, normalize=True)
    k, v = k.clone(), v.clone()
    k[:, :, 90:], v[:, :, 90:] = 1e30, -1e30
    after = linear_attention(q, k, v, normalize=True)
    assert torch.equal(before[:, :, :90], after[:, :, :90])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_accumulates_in_float32(causal: bool, dtype: torch.dtype) -> None:
    q, k, v = (torch.rand(1, 2, 4096, 8).to(dtype) for _ in range(3))
    o, (S,) = linear_attention(q, k, v, causal=causal, return_state=True)
    exact = reference.linear_attention(q.double(), k.double(), v.double(), causal=causal)
    assert o.dtype == dtype and S.dtype == torch.float32
    if dtype == torch.bfloat16:  # float16 itself overflows here, the float32 state does not
        assert relative(o.double(), exact) < 1e-2
    assert relative(S.double(), (k.double().mT @ v.double())) < 1e-5


def test_strides_and_expanded_gradients() -> None:
    q, k, v = (torch.randn(2, 70, 3, 4, dtype=torch.float64).transpose(1, 2).requires_grad_() for _ in range(3))
    ours = torch.autograd.grad(linear_attention(q, k, v).sum(), (q, k, v))  # the gradient is expanded: stride 0
    theirs = torch.autograd.grad(reference.linear_attention(q, k, v).sum(), (q, k, v))
    assert all(relative(a, b) < 1e-10 for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("causal", [True, False])
def test_compiles_to_one_graph(causal: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(linear_attention, fullgraph=True, backend="aot_eager")
    leaves = [x.float().requires_grad_() for x in draw(100, True)]
    real = key_mask("left", 2, 100)
    results = []
    for fn in (linear_attention, compiled):
        o = fn(*leaves, causal=causal, normalize=True, key_mask=real)
        results.append([o, *grads([o], leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_peak_memory_is_near_the_floor() -> None:
    """Output and three gradients are the floor of forward and backward, and 1.1 times that is allowed."""
    assert memory_over_floor("linear_attention") < 1.1


@pytest.mark.parametrize(
    "change,message",
    [
        ({"q": torch.zeros(2, 3, 8)}, "four axes"),
        ({"q": torch.zeros(2, 3, 9, 4)}, "must be the same"),
        ({"q": torch.zeros(2, 3, 8, 5)}, "same width"),
        ({"q": torch.zeros(2, 3, 8, 4, dtype=torch.float64)}, "the same type"),
        ({"key_mask": torch.ones(2, 7)}, "key_mask has shape (2, 7)"),
        ({"segments": torch.ones(2, 9, dtype=torch.long)}, "segments has shape (2, 9)"),
        ({"segments": torch.ones(2, 8)}, "integers"),
        ({"log_decay": torch.zeros(4)}, "log_decay has shape (4,)"),
        ({"state": (torch.zeros(2, 3, 4, 4),)}, "state holds"),
        ({"backend": "torhc"}, "did you mean 'torch'"),
        ({"q": torch.zeros(2, 4, 8, 4), "causal": False}, "must divide the heads of q"),
        ({"q": torch.zeros(1, 3, 9, 4), "causal": False}, "the batch of q, must be the same"),
        ({"v": torch.zeros(2, 3, 9, 5), "causal": False}, "must be the same"),
        ({"q": torch.zeros(2, 3, 9, 4), "causal": False, "key_mask": torch.ones(2, 9)}, "key_mask has shape (2, 9)"),
        ({"q": torch.zeros(2, 6, 8, 4), "causal": False, "segments": torch.zeros(2, 8).long()}, "segments is given"),
    ],
)
def test_bad_input_is_one_line(change: dict, message: str) -> None:
    arguments = {"q": torch.zeros(2, 3, 8, 4), "k": torch.zeros(2, 3, 8, 4), "v": torch.zeros(2, 3, 8, 5)} | change
    q, k, v = (arguments.pop(name) for name in "qkv")
    with pytest.raises(InputError) as error:
        linear_attention(q, k, v, **arguments)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_what_it_cannot_do() -> None:
    q = torch.zeros(1, 1, 4, 2)
    with pytest.raises(UnsupportedError, match="causal=True"):
        linear_attention(q, q, q, causal=False, log_decay=torch.zeros(1))
    with pytest.raises(UnsupportedError, match="'triton' cannot run this linear_attention: widths are 2 and 2"):
        linear_attention(q, q, q, backend="triton")
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(UnsupportedError, match="causal=True"):
        linear_attention(q, q, q, causal=False, segments=ids, return_state=True)
