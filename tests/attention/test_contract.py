"""Every registered mechanism keeps the contract of linnet.testing; a new file brings its own tests."""

import pytest
import torch

import linnet
from linnet.errors import InputError, UnsupportedError
from linnet.testing import check_attention, contract_difference
from tests.attention.cases import ABOUT, FORMS, NAMES, RECURRENT


@pytest.mark.parametrize("name,causal", FORMS)
def test_contract(name: str, causal: bool) -> None:
    check_attention(name, causal=causal, compile=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_flag_is_kept(name: str) -> None:
    """A capability that a mechanism lacks raises a one-line UnsupportedError, at construction if possible."""
    about = ABOUT[name]
    flags = {"causal", "bidirectional", "recurrent", "packed", "any_length", "cross", "core"}
    assert set(about) >= {"paper", "cost"} | flags
    if not about["core"]:
        with pytest.raises(UnsupportedError, match=f"^{name} is a mixer only"):
            linnet.create_attention(name, heads=2, head_dim=8, causal=about["causal"])
    for causal, able in ((True, about["causal"]), (False, about["bidirectional"])):
        if not able:
            with pytest.raises(UnsupportedError):
                linnet.create_mixer(name, width=16, heads=2, causal=causal)
    form = about["causal"]
    mixer = linnet.create_mixer(name, width=16, heads=2, causal=form)
    x = torch.randn(1, 4, 16)
    if not about["packed"]:
        with pytest.raises(UnsupportedError):
            mixer(x, segments=torch.zeros(1, 4, dtype=torch.long))
    if not (about["recurrent"] and form):
        with pytest.raises(UnsupportedError):
            mixer.prefill(x)


@pytest.mark.parametrize("name", NAMES)
def test_cross_attention(name: str) -> None:
    """If the flag is set, the contract holds for queries of another sequence; otherwise they are a one-line error."""
    form = not ABOUT[name]["bidirectional"]
    core = linnet.create_mixer(name, width=32, heads=4, causal=form).core
    if ABOUT[name]["cross"]:
        options = {"positions": "none"} if "positions" in type(core.options).model_fields else {}
        report = check_attention(name, causal=False, heads=4, head_dim=8, lengths=(7,), options=options)
        assert sum("cross-attention" in check.name for check in report.checks) == 4
        assert report["shared heads differ from repeated ones"].passed
        core = linnet.create_attention(name, heads=4, head_dim=8, causal=False, **options)
        q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 9, 8)
        real = torch.arange(9).expand(2, 9) < 7
        k[:, :, 7:] = 0
        clean = core(q, k, k, key_mask=real)
        k[:, :, 7:] = torch.nan
        assert torch.equal(core(q, k, k, key_mask=real), clean)
        k = torch.randn(2, 2, 9, 8)
        A = core.weights(q, k, normalize=True)
        assert A.shape == (2, 4, 5, 9) and torch.allclose(A.sum(dim=-1), torch.ones(2, 4, 5), atol=1e-5)
        with pytest.raises(UnsupportedError, match="segments"):
            core(q, k, k, segments=torch.zeros(2, 9, dtype=torch.long))
        for wrong in (torch.randn(2, 3, 9, 8), torch.randn(1, 4, 9, 8), torch.randn(2, 8, 9, 8)):
            with pytest.raises(InputError) as error:
                core(q, wrong, wrong)
            assert "\n" not in str(error.value)
        if ABOUT[name]["causal"]:
            with pytest.raises(InputError, match="must be the same in all three"):
                linnet.create_attention(name, heads=4, head_dim=8, causal=True)(q, k, k)
        return
    H, D = core.heads, core.head_dim
    q = torch.randn(2, H, 5, D)
    for k in (torch.randn(2, H, 9, D), torch.randn(2, 1, 5, D) if H > 1 else torch.randn(2, 1, 4, D)):
        with pytest.raises(UnsupportedError, match=f"^{name} has no cross-attention"):
            core(q, k, k)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.parametrize("name,causal", FORMS)
def test_inductor_compiles_every_mixer(name: str, causal: bool) -> None:
    """The default compiler, at two lengths, of which the second makes shapes symbols."""
    mixer = linnet.create_mixer(name, width=16, heads=2, causal=causal).eval()
    torch._dynamo.reset()
    compiled = torch.compile(mixer)
    with torch.no_grad():
        for N in (70, 131):
            x = torch.randn(2, N, 16)
            assert torch.allclose(compiled(x), mixer(x), atol=1e-5), N


@pytest.mark.parametrize("name", NAMES)
def test_discrete_choices_are_those_of_float32(name: str) -> None:
    """Under autocast, too; the contract compares mixers whose parameters are in half precision."""
    mixer = linnet.create_mixer(name, width=32, heads=2, causal=not ABOUT[name]["bidirectional"]).eval()
    x = torch.randn(2, 257, 32)
    with torch.no_grad():
        exact = mixer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert contract_difference(mixer(x).float(), exact) < 0.03


@pytest.mark.parametrize("name,causal", FORMS)
def test_mixer(name: str, causal: bool) -> None:
    """A mixer: its shapes, its weights, its gradients, and bfloat16 autocast."""
    mixer = linnet.create_mixer(name, width=24, heads=3, causal=causal)
    x = torch.randn(2, 70, 24, requires_grad=True)
    y = mixer(x)
    assert y.shape == x.shape
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())
    A = mixer.weights(x)
    rows, some = mixer.weights(x, normalize=True).sum(dim=-1), (A != 0).any(dim=-1)  # ReLU can leave a row of zeros
    assert A.shape == (2, mixer.core.heads, 70, 70) and torch.allclose(rows, some.to(rows.dtype), atol=1e-4)
    assert some.float().mean() > 0.9
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = mixer(x)
    assert half.isfinite().all() and float((half - y).detach().abs().max() / y.detach().abs().max()) < 0.1


@pytest.mark.parametrize("name", RECURRENT)
def test_a_compiled_step_takes_any_batch(name: str) -> None:
    """There is no graph break, even when the batch changes and shapes become symbolic."""
    mixer = linnet.create_mixer(name, width=16, heads=2, causal=True).eval()
    torch._dynamo.reset()
    step = torch.compile(mixer.step, fullgraph=True, backend="aot_eager")
    for B in (2, 3, 5):
        x = torch.randn(B, 6, 16)
        with torch.no_grad():
            _, state = mixer.prefill(x[:, :5])
            assert torch.allclose(step(x[:, 5:], state)[0], mixer.step(x[:, 5:], state)[0], atol=1e-5)


@pytest.mark.parametrize("name", RECURRENT)
def test_states_have_the_batch_first_and_constant_size(name: str) -> None:
    mixer = linnet.create_mixer(name, width=16, heads=2, causal=True).eval()
    _, state = mixer.prefill(torch.randn(3, 5, 16))
    assert isinstance(state, tuple) and all(isinstance(part, torch.Tensor) and part.shape[0] == 3 for part in state)
    y, after = mixer.step(torch.randn(3, 1, 16), state)
    assert y.shape == (3, 1, 16) and [part.shape[0] for part in after] == [3] * len(state)


def test_constant_input_gives_finite_output() -> None:
    for name, causal in FORMS:
        mixer = linnet.create_mixer(name, width=16, heads=2, causal=causal)
        for value in (0.0, 1.0, 100.0):
            assert mixer(torch.full((2, 66, 16), value)).isfinite().all(), (name, causal, value)
