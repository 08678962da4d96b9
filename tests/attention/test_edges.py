"""Edge cases that break attentions: half precision, checkpointing, states, unusual masks, meta tensors."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import linnet
from linnet.errors import InputError, UnsupportedError
from linnet.ops import exp_attention, linear_attention, reference
from linnet.testing import check_attention, contract_difference
from tests.attention.cases import ABOUT, FORMS, RECURRENT


@pytest.mark.parametrize("name,causal", FORMS)
def test_activation_checkpointing(name: str, causal: bool) -> None:
    mixer = linnet.create_mixer(name, width=16, heads=2, causal=causal)
    x = torch.randn(1, 70, 16, requires_grad=True)
    plain = torch.autograd.grad(mixer(x).square().sum(), x)[0]
    again = torch.autograd.grad(checkpoint(mixer, x, use_reentrant=False).square().sum(), x)[0]
    assert torch.equal(plain, again)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", [("norm", {}), ("norm", {"positions": "none"}), ("diag", {"kind": "rela"})])
def test_float16_does_not_overflow_before_the_norm(kind: tuple[str, dict], causal: bool) -> None:
    name, options = kind
    mixer = linnet.create_mixer(name, width=64, heads=2, causal=causal, **options).half()
    x = (20 * torch.randn(1, 2048, 64) + 10).half()
    y = mixer(x)
    assert y.dtype == torch.float16 and y.isfinite().all()
    if causal:
        _, state = mixer.prefill(x[:, :-1])
        last, _ = mixer.step(x[:, -1:], state)
        assert contract_difference(last.float(), y[:, -1:].float()) < 0.01


def test_packed_half_precision_accumulates_in_float32() -> None:
    core = linnet.create_attention("elu", heads=2, head_dim=64, causal=False)
    q, k, v = (torch.randn(1, 2, 2048, 64) for _ in range(3))
    ids = torch.zeros(1, 2048, dtype=torch.long)
    half = core(q.half(), k.half(), v.half(), segments=ids).float()
    assert contract_difference(half, core(q, k, v)) < 0.01


def test_angles_stay_float32_in_a_half_model() -> None:
    for positions in ("lrpe", "rope"):
        core = linnet.create_attention("norm", heads=1, head_dim=32, causal=True, positions=positions)
        q, k, v = (torch.randn(1, 1, 4096, 32).bfloat16() for _ in range(3))
        exact = core(q.float(), k.float(), v.float())
        assert contract_difference(core.bfloat16()(q, k, v).float(), exact) < 0.05


def test_one_plus_elu_does_not_cancel_in_half_precision() -> None:
    from linnet.ops.features import one_plus_elu_features as phi

    x = torch.tensor([-12.0, -6.5, 0.0, 3.0])
    exact = torch.tensor([6.1442124e-06, 1.5034392e-03, 1.0, 4.0])
    assert torch.allclose(phi(x.bfloat16()).float(), exact, rtol=0.02)
    assert torch.allclose(phi(x), exact, rtol=0.02)


def test_a_segment_of_another_scale_changes_nothing() -> None:
    core = linnet.create_attention("lln", heads=2, head_dim=8, causal=True)
    q, k, v = (torch.randn(1, 2, 40, 8, dtype=torch.float64) for _ in range(3))
    ids = (torch.arange(40) >= 20).long()[None]
    alone = core(q[:, :, 20:], k[:, :, 20:], v[:, :, 20:])
    for x in (q, k, v):
        x[:, :, :20] *= 1e8
    assert contract_difference(core(q, k, v, segments=ids)[:, :, 20:], alone) < 1e-10


@pytest.mark.parametrize("name,causal", FORMS)
def test_padding_is_never_read(name: str, causal: bool) -> None:
    core = linnet.create_mixer(name, width=16, heads=2, causal=causal).core
    q, k, v = (torch.randn(2, core.heads, 30, core.head_dim) for _ in range(3))
    real = torch.ones(2, 30, dtype=torch.bool)
    real[:, :5], real[:, 28:] = False, False
    clean = core(q, k, v, key_mask=real)[:, :, 5:28]
    for x in (k, v):
        x[:, :, :5], x[:, :, 28:] = torch.nan, torch.inf
    assert torch.equal(core(q, k, v, key_mask=real)[:, :, 5:28], clean)


@pytest.mark.parametrize("name,causal", FORMS)
def test_a_row_without_a_real_token_gives_zeros_and_finite_gradients(name: str, causal: bool) -> None:
    core = linnet.create_mixer(name, width=16, heads=2, causal=causal).core
    q, k, v = (torch.randn(2, core.heads, 300, core.head_dim, requires_grad=True) for _ in range(3))
    real = torch.ones(2, 300, dtype=torch.bool)
    real[0] = False
    o = core(q, k, v, key_mask=real)
    assert not o[0].any() and o[1].any()
    for gradient in torch.autograd.grad(o.sum(), [q, k, v]):
        assert gradient.isfinite().all() and not gradient[0].any()
    if core.has_weights:
        A = core.weights(q, k, key_mask=real)
        assert A.isfinite().all() and not A[0].any()


@pytest.mark.parametrize("scale", [1e3, 1e5, 1e10, 1e20])
def test_exponential_features_of_huge_scale(scale: float) -> None:
    """Exact while float32 can distinguish two exponents, and finite beyond."""
    q, k, v = (torch.randn(1, 2, 70, 4) for _ in range(3))
    for causal in (True, False):
        ours = exp_attention(scale * q, scale * k, v, causal=causal)
        exact = reference.exp_attention((scale * q).double(), (scale * k).double(), v.double(), causal=causal)
        assert ours.isfinite().all()
        assert scale > 1e5 or contract_difference(ours.double(), exact) < 1e-5


def test_one_channel_one_head_one_row() -> None:
    q, k, v = (torch.randn(1, 1, 5, width, requires_grad=True) for width in (1, 1, 3))
    assert contract_difference(exp_attention(q, k, v), reference.exp_attention(q, k, v)) < 1e-6
    assert check_attention("lln", causal=True, heads=1, head_dim=1, lengths=(1, 5)).passed


def test_forward_mode_is_refused_rather_than_wrong() -> None:
    q = torch.randn(1, 1, 5, 4)
    for fn in (linear_attention, exp_attention):
        with pytest.raises(UnsupportedError, match="reverse mode"):
            torch.func.jvp(lambda x, fn=fn: fn(x, q, q), (q,), (q,))


def test_decay_of_minus_infinity_and_its_gradient_in_half_precision() -> None:
    q, k, v = (torch.randn(1, 2, 300, 8) for _ in range(3))
    forgetful = linear_attention(q, k, v, log_decay=torch.full((2,), -torch.inf))
    assert torch.allclose(forgetful, (q * k).sum(dim=-1, keepdim=True) * v, atol=1e-5)
    rates = [torch.tensor([-0.01, -1.0], dtype=dtype, requires_grad=True) for dtype in (torch.float64, torch.float32)]
    halves = [x.bfloat16() for x in (q, k, v)]
    exact = torch.autograd.grad(linear_attention(*(x.double() for x in halves), log_decay=rates[0]).sum(), rates[0])[0]
    ours = torch.autograd.grad(linear_attention(*halves, log_decay=rates[1]).float().sum(), rates[1])[0]
    assert torch.allclose(ours.double(), exact, rtol=0.02)


@pytest.mark.parametrize("name", RECURRENT)
def test_states_are_checked(name: str) -> None:
    mixer = linnet.create_mixer(name, width=16, heads=2, causal=True)
    x = torch.randn(2, 5, 16)
    _, state = mixer.prefill(x)
    calls = [
        lambda: mixer.step(x[:, :2], state),
        lambda: mixer.step(x[:, :1], None),
        lambda: mixer.step(x[:1, :1], state),
        lambda: mixer.step(x[:, :1], state[:-1]),
        lambda: mixer.step(x[:, :1], 5),
        lambda: mixer.prefill(x, state=(torch.zeros(2),)),
        lambda: mixer.prefill(x, key_mask=torch.ones(2, 6)),
    ]
    for call in calls:
        with pytest.raises(InputError) as error:
            call()
        assert "\n" not in str(error.value)
    if ABOUT[name]["bidirectional"]:
        with pytest.raises(UnsupportedError, match="causal=False"):
            linnet.create_mixer(name, width=16, heads=2, causal=False).step(x[:, :1], state)


@pytest.mark.parametrize("mask", [[[1, 1]], torch.tensor([[0.0, -torch.inf]]), torch.tensor([[0.5, 1.0]])])
def test_a_mask_is_zeros_and_ones(mask) -> None:
    core = linnet.create_attention("elu", heads=1, head_dim=2, causal=True)
    x = torch.randn(1, 1, 2, 2)
    with pytest.raises(InputError, match="key_mask"):
        core(x, x, x, key_mask=mask)


@pytest.mark.parametrize("name,causal", FORMS)
def test_a_model_can_be_built_and_run_without_memory(name: str, causal: bool) -> None:
    with torch.device("meta"):
        mixer = linnet.create_mixer(name, width=16, heads=2, causal=causal)
        assert mixer(torch.randn(2, 70, 16)).shape == (2, 70, 16)
    real = linnet.create_mixer(name, width=16, heads=2, causal=causal)
    mixer.to_empty(device="cpu").load_state_dict(real.state_dict())
    x = torch.randn(1, 9, 16)
    assert torch.equal(mixer(x), real(x))


@pytest.mark.parametrize("mix", ["scale", "ratio"])
def test_learned_mixes_keep_the_rest_of_the_contract(mix: str) -> None:
    report = check_attention("lln_diag", causal=True, options={"mix": mix}, lengths=(1, 7, 100))
    assert "recurrent form does not differ" in str(report) and "definition" not in str(report)
    x = torch.randn(1, 5, 16)
    mha = linnet.MultiheadAttention(16, 2, attention="lln_diag", options={"mix": mix}, batch_first=True)
    y, A = mha(x, x, x)
    assert y.shape == x.shape and A is None


def test_multihead_masks() -> None:
    mha = linnet.MultiheadAttention(16, 2, attention="norm", batch_first=True)
    x = torch.randn(1, 6, 16)
    ignore = torch.tensor([[False] * 4 + [True] * 2])
    lowest = torch.zeros(1, 6).masked_fill(ignore, torch.finfo(torch.float32).min)
    assert torch.equal(mha(x, x, x, key_padding_mask=lowest)[0], mha(x, x, x, key_padding_mask=ignore)[0])
    for bad in (ignore.to(torch.uint8), torch.full((1, 6), 0.5)):
        with pytest.raises(InputError, match="key_padding_mask"):
            mha(x, x, x, key_padding_mask=bad)
    sample = linnet.MultiheadAttention(16, 2, attention="lln", options={"statistics": "sample"}, batch_first=True)
    with pytest.raises(UnsupportedError, match="reads the future"):
        sample(x, x, x, is_causal=True, need_weights=False)


def test_the_cost_of_blocks_follows_the_tokens() -> None:
    from linnet.ops import block_attention

    q = torch.randn(1, 1, 16, 4)
    ids = torch.zeros(1, 16, dtype=torch.long)
    assert torch.allclose(
        block_attention(q, q, q, block=2**20, segments=ids), block_attention(q, q, q, block=16), atol=1e-6
    )


@pytest.mark.parametrize(
    "name,option", [("bigbird", "block"), ("flash", "chunk"), ("long_short", "window"), ("long_short", "chunk")]
)
def test_a_block_longer_than_the_rows_costs_no_more_than_the_tokens(name: str, option: str) -> None:
    for causal in (True, False):
        if not ABOUT[name]["causal" if causal else "bidirectional"]:
            continue
        short, long = (
            linnet.create_mixer(name, width=16, heads=2, causal=causal, **{option: size}) for size in (512, 2**17)
        )
        long.load_state_dict(short.state_dict())
        x = torch.randn(1, 20, 16)
        assert long(x).isfinite().all()
        if name != "flash":  # which divides its scores by the chunk
            assert torch.allclose(long(x), short(x), atol=1e-6)


@pytest.mark.parametrize(
    "arguments", [{"heads": True}, {"width": 32.0}, {"block": True}, {"block": "8"}, {"dropout": "0.1"}]
)
def test_types_are_strict(arguments: dict) -> None:
    with pytest.raises(InputError) as error:
        linnet.create_mixer("diag", **({"width": 32, "heads": 4, "causal": True} | arguments))
    assert next(iter(arguments)) in str(error.value) and "\n" not in str(error.value)


def test_a_core_says_what_it_is() -> None:
    shown = str(linnet.create_mixer("diag", width=32, heads=4, causal=True, block=8))
    assert "heads=4" in shown and "causal=True" in shown and "block=8" in shown


@pytest.mark.parametrize("name", RECURRENT)
def test_a_state_follows_a_model_to_another_type(name: str) -> None:
    mixer = linnet.create_mixer(name, width=16, heads=2, causal=True)
    x = torch.randn(2, 9, 16)
    y = mixer(x)
    _, state = mixer.prefill(x[:, :8])
    for dtype in (torch.float64, torch.bfloat16):
        moved = tuple(part.to(dtype) for part in state)  # counts and flags too
        last, after = mixer.step(x[:, 8:], moved)
        assert contract_difference(last, y[:, 8:]) < (1e-5 if dtype == torch.float64 else 0.05)
        assert [part.dtype for part in after] == [part.dtype for part in state]
    half, _ = mixer.bfloat16().step(x[:, 8:].bfloat16(), state)
    assert half.dtype == torch.bfloat16 and contract_difference(half.float(), y[:, 8:]) < 0.1
    with pytest.raises(InputError, match="on meta"):
        mixer.step(x[:, 8:].bfloat16(), tuple(part.to("meta") for part in state))


def test_a_model_with_gradients_can_be_turned_to_half() -> None:
    mixer = linnet.create_mixer("norm", width=16, heads=2, causal=True)
    mixer(torch.randn(2, 9, 16)).sum().backward()
    mixer.bfloat16()
    torch.optim.AdamW(mixer.parameters()).step()
    theta = mixer.core.positions.theta
    assert theta.dtype == theta.grad.dtype == torch.float32


def test_forward_mode_is_refused_for_keys_and_states() -> None:
    q = torch.rand(1, 1, 5, 4)
    S = torch.rand(1, 1, 4, 4)
    with pytest.raises(UnsupportedError, match="reverse mode"):
        torch.func.jvp(lambda k: linear_attention(q, k, q), (q,), (q,))
    with pytest.raises(UnsupportedError, match="reverse mode"):
        torch.func.jvp(lambda s: linear_attention(q, q, q, state=(s,)), (S,), (S,))
