"""Triton's kernels against the dense reference, under Triton's interpreter; `test_triton.py` runs this file.

The interpreter must be asked for before Triton is imported, and is slow: blocks are small here, so that few tokens have
several spans, and each case has many things at once.
"""

import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

from linnet.ops import exp_attention, linear_attention, reference
from linnet.ops.backend import choose_kernel_backend, no_triton_backend
from linnet.ops.triton import exponential, linear, linear_kernel, tiles
from tests.ops.cases import grads, key_mask, relative, segments

INF = torch.inf
LINEAR = [  # N, causal, normalize, mask, packed, stateful
    (75, True, True, "inner", True, True),
    (50, True, False, "left", False, True),
    (64, True, True, None, True, False),
    (50, False, True, "right", False, True),
    (75, False, True, "inner", True, False),
    (40, False, False, None, True, False),
    (1, True, True, None, False, True),
]
EXPONENTIAL = [  # N, causal, mask, packed, stateful
    (40, True, "inner", True, True),
    (37, True, "left", False, True),
    (33, True, None, True, False),
    (37, False, "right", False, True),
    (40, False, "inner", True, True),
    (1, False, None, False, False),
]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks; and the interpreter prepares a module once for each launch, not at each call of a helper."""
    assert tiles.tiles_interpreted(), "run by test_triton.py, with TRITON_INTERPRET=1"
    prepared: set[int] = set()
    launch = interpreter.GridExecutor.__call__

    def start(self, *args, **options):
        prepared.clear()
        return launch(self, *args, **options)

    def call(self, *args, **options):
        if id(self.fn.__globals__) not in prepared:
            prepared.add(id(self.fn.__globals__))
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **options)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", start)
    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)
    monkeypatch.setattr(tiles, "SPAN", 32)
    monkeypatch.setattr(linear_kernel, "linear_kernel_sizes", lambda dtype, D, E: (16, 16, 16, 4))


def draw(N: int, D: int = 9, E: int = 20, positive: bool = False, scale: float = 1.0) -> list[Tensor]:
    """Queries, keys and values of two rows and one head; keys are (B,N,H,D) in memory."""
    q, k, v = torch.randn(2, 1, N, D), torch.randn(2, N, 1, D).transpose(1, 2), torch.randn(2, 1, N, E)
    return [x.abs() if positive else x * scale for x in (q, k)] + [v]


def compare(ours, theirs, inputs: list[Tensor], fixed=(), bound: float = 1e-5, share: float = 0.1) -> None:
    """Values and gradients of `ours` in the inputs' type against `theirs` in float64; the m of a state is fixed."""
    results = []
    for fn, cast in ((theirs, torch.Tensor.double), (ours, torch.clone)):
        leaves = [cast(x).detach().requires_grad_() for x in inputs]
        out = [x.double() for x in fn(*leaves, *(cast(x) for x in fixed))]
        results.append((out, [x.double() for x in grads(out, leaves)]))
    (values, slopes), (our_values, our_slopes) = results
    assert all(relative(x, y) < bound for x, y in zip(our_values, values, strict=True))
    least = share * max(float(x.abs().max()) for x in slopes)  # one that is 0 is so but for the rounding of the others
    for x, y in zip(our_slopes, slopes, strict=True):
        assert float((x - y).abs().max()) <= bound * max(float(y.abs().max()), least)


def flat(result) -> list[Tensor]:
    """The tensors that carry gradients: o, and S and z of a state."""
    return [result[0], *result[1][:2]] if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_linear_attention(case: tuple) -> None:
    N, causal, normalize, mask, packed, stateful = case
    inputs = draw(N, positive=normalize)
    if stateful:
        inputs += [torch.randn(2, 1, 9, 20), torch.rand(2, 1, 9)][: 1 + normalize]
    options = {"causal": causal, "normalize": normalize, "key_mask": key_mask(mask, 2, N)}
    options |= {"segments": segments(2, N) if packed else None, "return_state": causal or not packed}

    def call(fn, backend: str):
        return lambda q, k, v, *state: flat(fn(q, k, v, **options, state=state or None, backend=backend))

    compare(call(linear_attention, "triton"), call(reference.linear_attention, "reference"), inputs)


@pytest.mark.parametrize("case", EXPONENTIAL, ids=str)
def test_exp_attention(case: tuple) -> None:
    N, causal, mask, packed, stateful = case
    inputs, fixed = draw(N, scale=4), []
    if stateful:
        inputs, fixed = inputs + [torch.randn(2, 1, 9, 20), torch.rand(2, 1, 9) + 0.5], [torch.randn(2, 1, 9)]
    options = {"causal": causal, "key_mask": key_mask(mask, 2, N), "segments": segments(2, N) if packed else None}

    options["return_state"] = True

    def call(fn, backend: str):
        return lambda q, k, v, *state: flat(fn(q, k, v, **options, state=state or None, backend=backend))

    compare(call(exp_attention, "triton"), call(reference.exp_attention, "reference"), inputs, fixed)


@pytest.mark.parametrize("dtype,bound", [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("op", [linear_attention, exp_attention])
def test_half_precision(op, dtype: torch.dtype, bound: float) -> None:
    """Against the reference on the same inputs; scores of linear attention are past the range of float16."""
    q, k, v = draw(40, 16, 8)
    inputs = [q * 300, k * 300, v / 2**10] if op is linear_attention else [q, k, v]
    inputs = [x.to(dtype) for x in inputs]
    dense = getattr(reference, op.__name__)
    compare(lambda *x: [op(*x, backend="triton") / 256], lambda *x: [dense(*x) / 256], inputs, (), bound, 0)
    _, state = op(*inputs, return_state=True, backend="triton")
    assert all(part.dtype == torch.float32 for part in state)


@pytest.mark.parametrize("causal", [True, False])
def test_exp_attention_is_exact_at_any_scale_and_never_reads_the_future(causal: bool) -> None:
    q, k, v = draw(40, 8, 8, scale=20)
    q[0, 0, 3], k[0, 0, :, 2], k[1, 0, :20] = -INF, -INF, -INF
    ours = lambda *x: [exp_attention(*x, causal, backend="triton")]  # noqa: E731
    compare(ours, lambda *x: [reference.exp_attention(*x, causal)], [q, k, v])
    before = exp_attention(q, k, v, causal, backend="triton")
    assert not before[0, 0, 3].any()
    k[0, 0, 21, 0] = 1200.0  # in the middle of a block
    after = exp_attention(q, k, v, causal, backend="triton")
    assert relative(after[0, 0, 21:], v[0, 0, 21].expand(19, -1)) < 1e-6
    assert torch.equal(before[0, 0, :21], after[0, 0, :21]) == causal


@pytest.mark.parametrize("op", [linear_attention, exp_attention])
@pytest.mark.parametrize("causal", [True, False])
def test_masked_tokens_are_never_read(op, causal: bool) -> None:
    q, k, v = draw(33, 8, 8)
    real = key_mask("inner", 2, 33)
    hidden = ~real[:, None, :, None]
    clean = [x.masked_fill(hidden, 0) for x in (k, v)]
    dirty = [x.masked_fill(hidden, torch.nan).requires_grad_() for x in (k, v)]
    o = op(q, *dirty, causal=causal, key_mask=real, backend="triton")
    assert torch.equal(op(q, *clean, causal=causal, key_mask=real, backend="triton"), o)
    for dx in torch.autograd.grad(o.sum(), dirty):
        assert dx.isfinite().all() and not dx[hidden.expand_as(dx)].any()


def test_strides() -> None:
    """Slices of one projection, columns apart, expanded and negated views, and a gradient of stride 0."""
    sliced = list(torch.randn(1, 20, 3, 2, 8).permute(2, 0, 3, 1, 4))
    apart = [x[..., ::2] for x in torch.randn(3, 1, 2, 20, 16)]
    expanded = [torch.randn(1, 1, 20, 8).expand(-1, 2, -1, -1) for _ in range(3)]
    negated = [torch.complex(x, x).conj().imag for x in sliced]
    for inputs in (sliced, apart, expanded, negated):
        leaves, results = [x.detach().requires_grad_() for x in inputs], []
        for name in ("triton", "reference"):
            o = linear_attention(*leaves, backend=name)
            results.append([o, *torch.autograd.grad(o.sum(), leaves)])
        assert all(relative(x, y) < 1e-5 for x, y in zip(*results, strict=True))
    assert linear_attention(*sliced, backend="triton").transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("op", [linear_attention, exp_attention])
def test_compiles_to_one_graph(op) -> None:
    leaves, results = [x.requires_grad_() for x in draw(20, 8, 8)], []
    for fn in (op, torch.compile(op, fullgraph=True, backend="aot_eager")):
        o = fn(*leaves, causal=True, key_mask=key_mask("left", 2, 20), backend="triton")
        results.append([o, *grads([o], leaves)])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_operators_are_declared_rightly() -> None:
    q, k, v = (x.requires_grad_() for x in draw(20, 8, 9))
    S, z = torch.randn(2, 1, 8, 9, requires_grad=True), torch.rand(2, 1, 8, requires_grad=True)
    masks = key_mask("inner", 2, 20), segments(2, 20)
    tests = "test_schema", "test_faketensor", "test_autograd_registration"
    torch.library.opcheck(linear.linear._op, (q, k, v, *masks, S, z, True, True), test_utils=tests)
    inputs = q, k, v, *masks, S, z, torch.randn(2, 1, 8), True
    torch.library.opcheck(exponential.exponential._op, inputs, test_utils=tests)


def test_it_is_never_chosen_for_the_cpu() -> None:
    x = torch.randn(1, 1, 4, 8, dtype=torch.bfloat16)
    assert no_triton_backend("cpu") == "" and choose_kernel_backend("linear_attention", x, x, None) == "torch"
