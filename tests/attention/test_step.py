"""A decoding step in one kernel equals the step in PyTorch, keeps its state, and is used only where valid."""

import copy

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from linnet import create_attention, create_mixer
from linnet.attention.base import Core
from linnet.errors import InputError
from linnet.ops.backend import no_cpu_backend

pytestmark = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")
CORES = [
    ("elu", {}),
    ("elu", {"positions": "lrpe"}),
    ("elu", {"positions": "rope"}),
    ("elu", {"normalize": False}),
    ("elu", {"positions": "lrpe", "normalize": False}),
    ("norm", {}),
    ("norm", {"xnorm": "eq34", "eps": 1e-4}),
    ("norm", {"positions": "rope"}),
    ("norm", {"positions": "none", "phi": "elu", "xnorm": "none"}),
    ("lln", {}),
    ("lln", {"match": "paper"}),
]


@torch.no_grad()
def decoding(name: str) -> tuple[Core, list[Tensor], tuple[Tensor, ...]]:
    """A core of two heads, a token's q, k, v (2,2,1,16), and the state after two of them."""
    core = create_attention(name, heads=2, head_dim=16, causal=True)
    qkv = [torch.randn(2, 2, 1, 16) for _ in range(3)]
    return core, qkv, core.step(*qkv, core.prefill(*qkv)[1])[1]


@pytest.mark.parametrize("name,options", CORES)
@pytest.mark.parametrize("B,H,D,E", [(1, 8, 64, 64), (3, 5, 24, 9), (40, 2, 70, 80)])
@torch.no_grad()
def test_equals_the_torch_path(
    monkeypatch: pytest.MonkeyPatch, name: str, options: dict, B: int, H: int, D: int, E: int
) -> None:
    core = create_attention(name, heads=H, head_dim=D, causal=True, **options)
    q, k, v = (torch.randn(B, 30, H, width).transpose(1, 2) for width in (D, D, E))
    _, state = core.prefill(q[:, :, :20], k[:, :, :20], v[:, :, :20])
    theirs = state = tuple(x.contiguous() for x in state)
    for t in range(20, 30):
        token = [x[:, :, t : t + 1] for x in (q, k, v)]
        before = [x.clone() for x in state]
        assert core.quick_step(*token, state) is not None
        o, after = core.step(*token, state)
        assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True))
        with monkeypatch.context() as chosen:
            chosen.setenv("LINNET_BACKEND", "torch")
            assert core.quick_step(*token, theirs) is None
            expected, theirs = core.step(*token, theirs)
        for a, b in zip((o, *after), (expected, *theirs), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())
        state = after


@pytest.mark.parametrize("name", ["elu", "norm", "lln"])
def test_the_kernel_step_is_not_used_for_unsupported_inputs(name: str) -> None:
    core, (q, k, v), state = decoding(name)
    with torch.no_grad():
        assert core.quick_step(q, k, v, state) is not None
        assert core.quick_step(q.double(), k.double(), v.double(), state) is None
        assert core.quick_step(*(x.bfloat16() for x in (q, k, v)), state) is None
        assert core.quick_step(q, k, v, state[:-1]) is None
        assert core.quick_step(q, k, v, (state[0].mT, *state[1:])) is None
        assert core.quick_step(q, k, v[:1], state) is None
        assert core.quick_step(q[..., ::2], k, v, state) is None
        assert core.quick_step(q, torch.complex(k, k).conj().imag, v, state) is None
        assert core.quick_step(q, torch._neg_view(k), v, state) is None
        assert core.quick_step(q, k, torch.nn.Parameter(v), state) is None
        assert core.quick_step(q.to("meta"), k, v, state) is None
        assert core.quick_step(q.to_sparse(), k, v, state) is None
        assert core.quick_step(torch._efficientzerotensor(q.shape), k, v, state) is None
        assert core.quick_step(q, k, v, (*state, q)) is None
        assert core.quick_step(q, k, v, list(state)) is None
        assert core.quick_step(q, k, None, state) is None
        assert core.quick_step(q, k, v, (state[0].double(), *state[1:])) is None
        torch.vmap(lambda x: x if core.quick_step(x, k, v, state) is None else pytest.fail("served"))(q[None])
        with pytest.raises(InputError, match="state holds"):
            core.step(q, k, v, (state[0][:1], *state[1:]))
        with pytest.raises(InputError, match="one token, not 3"):
            core.step(*(x.expand(-1, -1, 3, -1) for x in (q, k, v)), state)
    q.requires_grad_()
    assert core.quick_step(q, k, v, state) is None
    assert core.step(q, k, v, state)[0].requires_grad


@pytest.mark.parametrize("name", ["elu", "norm", "lln"])
@torch.no_grad()
def test_the_kernel_step_is_not_used_under_tracing(name: str) -> None:
    """Transforms, tracers and forward mode cannot see inside the kernel."""
    core, (q, k, v), state = decoding(name)

    def refused(x: Tensor) -> Tensor:
        assert core.quick_step(x, k, v, state) is None
        return x + 1

    assert core.quick_step(q, k, v, state) is not None
    torch.func.functionalize(refused)(q)
    torch.func.jvp(refused, (q,), (q,))
    torch.jit.trace(refused, q, check_trace=False)
    with forward_ad.dual_level():
        refused(forward_ad.make_dual(q, q))


@pytest.mark.parametrize("name", ["elu", "norm", "lln"])
@torch.no_grad()
def test_it_asks_for_the_backend_each_time(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    core, (q, k, v), state = decoding(name)
    for choice, served in (("cpu", True), ("torch", False), ("", True), ("fast", False), ("cpu", True)):
        monkeypatch.setenv("LINNET_BACKEND", choice)
        assert (core.quick_step(q, k, v, state) is not None) == served
    monkeypatch.delenv("LINNET_BACKEND")
    assert core.quick_step(q, k, v, state) is not None


@pytest.mark.parametrize("position", [0, 3, 65_537, 10**7, 2**28 + 1, 10**12])
@torch.no_grad()
def test_angles_are_exact_at_any_position(monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    core = create_attention("norm", heads=3, head_dim=40, causal=True, xnorm="none")
    core.positions.theta.mul_(torch.linspace(-3, 3, 20))
    q, k, v = (torch.randn(2, 3, 1, 40) for _ in range(3))
    state = torch.randn(2, 3, 40, 40), torch.tensor([position, position + 1])
    assert core.quick_step(q, k, v, state) is not None
    o, after = core.step(q, k, v, state)
    monkeypatch.setenv("LINNET_BACKEND", "torch")
    expected, theirs = core.step(q, k, v, state)
    assert torch.equal(after[1], theirs[1])
    for a, b in ((o, expected), (after[0], theirs[0])):
        assert float((a - b).abs().max()) <= 1e-6 * float(b.abs().max())


@torch.no_grad()
def test_it_reads_angles_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    core, (q, k, v), state = decoding("norm")
    other = create_attention("norm", heads=2, head_dim=16, causal=True)
    core.load_state_dict(other.state_dict())
    assert torch.equal(core.step(q, k, v, state)[0], other.step(q, k, v, state)[0])
    copied = copy.deepcopy(core)
    core.positions.theta.mul_(2)
    assert torch.equal(copied.step(q, k, v, state)[0], other.step(q, k, v, state)[0])
    assert not torch.allclose(core.step(q, k, v, state)[0], other.step(q, k, v, state)[0])
    core.positions.theta.data = core.positions.theta.double()
    assert core.quick_step(q, k, v, state) is None


@pytest.mark.parametrize("name", ["elu", "norm", "lln"])
@torch.no_grad()
def test_a_saved_core_holds_no_addresses(name: str) -> None:
    """Addresses are valid only in one process."""
    core, (q, k, v), state = decoding(name)
    assert core.quick_step(q, k, v, state) is not None
    assert core.stepper.packed
    copied = copy.deepcopy(core)  # which takes what a file would
    assert not copied.stepper.packed
    assert torch.equal(copied.step(q, k, v, state)[0], core.step(q, k, v, state)[0])


@pytest.mark.parametrize("positions", ["rope", "lrpe"])
@torch.no_grad()
def test_lln_turns_queries_and_keys_before_it(monkeypatch: pytest.MonkeyPatch, positions: str) -> None:
    """Its state ends with the number of positions, which the kernel does not see."""
    core = create_attention("lln", heads=2, head_dim=16, causal=True, positions=positions)
    q, k, v = (torch.randn(3, 2, 12, 16) for _ in range(3))
    whole, served, quick = core(q, k, v), [], core.stepper.step
    monkeypatch.setattr(core.stepper, "step", lambda *args: served.append(quick(*args)) or served[-1])
    _, state = core.prefill(q[:, :, :5], k[:, :, :5], v[:, :, :5])
    for t in range(5, 12):
        o, state = core.step(*(x[:, :, t : t + 1] for x in (q, k, v)), state)
        assert torch.allclose(o, whole[:, :, t : t + 1], atol=1e-5)
        assert state[-1].tolist() == [t + 1] * 3
    assert sum(found is not None for found in served) >= 6


@torch.no_grad()
def test_the_mixer_steps_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = create_mixer("norm", width=64, heads=4, causal=True)
    x = torch.randn(3, 12, 64)
    whole = mixer(x)
    y, state = mixer.prefill(x[:, :5])
    parts, served = [y], []
    quick = mixer.core.quick_step
    monkeypatch.setattr(mixer.core, "quick_step", lambda *args: served.append(quick(*args)) or served[-1])
    for t in range(5, 12):
        y, state = mixer.step(x[:, t : t + 1], state)
        parts.append(y)
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-5)
    assert sum(found is not None for found in served) >= 6  # the first state of a prefill may have other strides
