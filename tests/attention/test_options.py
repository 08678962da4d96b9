"""The options of TransNormer's two mechanisms and of softmax keep the contract; bad ones raise one line."""

import pytest
import torch

import linnet
from linnet.errors import InputError
from linnet.ops.rms import srms
from linnet.testing import check_attention
from tests.attention.cases import FORMS

VARIANTS = [
    ("norm", {"phi": "elu"}),
    ("norm", {"positions": "rope"}),
    ("norm", {"positions": "none", "xnorm": "none"}),
    ("norm", {"xnorm": "rms"}),
    ("norm", {"xnorm": "layer"}),
    ("norm", {"xnorm": "eq34"}),
    ("norm", {"xnorm": "srms", "eps": 1e-2}),
    ("elu", {"positions": "rope"}),
    ("elu", {"positions": "lrpe"}),
    ("elu", {"normalize": False}),
    ("elu", {"positions": "lrpe", "normalize": False}),
    ("performer", {"positions": "rope", "features": 24}),
    ("performer", {"positions": "lrpe", "features": 24}),
    ("diag", {"kind": "rela"}),
    ("diag", {"block": 16, "positions": "none"}),
    ("diag", {"block": 1, "positions": "rope"}),
    ("softmax", {"positions": "rope"}),
    ("softmax", {"positions": "lrpe"}),
    ("lln_diag", {"block": 5}),
    ("lln", {"match": "paper"}),
    ("lln", {"positions": "rope"}),
    ("lln", {"positions": "lrpe"}),
    ("lln_diag", {"positions": "rope", "block": 5}),
    ("lln_diag", {"positions": "lrpe", "mix": "ratio"}),
]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name,options", VARIANTS)
def test_contract(name: str, options: dict, causal: bool) -> None:
    check_attention(name, causal=causal, options=options, lengths=(1, 7, 64, 100))


def test_norm_attention_is_the_norm_of_the_merged_heads() -> None:
    core = linnet.create_attention("norm", heads=3, head_dim=4, causal=True)
    q, k, v = (torch.randn(2, 3, 9, 4) for _ in range(3))
    bare = (core.weights(q, k) @ v).transpose(1, 2).flatten(2)  # (B, N, H*D)
    assert torch.allclose(core(q, k, v).transpose(1, 2).flatten(2), srms(bare), atol=1e-5)


def test_lrpe_has_learned_angles_and_a_frozen_reflection() -> None:
    core = linnet.create_attention("norm", heads=2, head_dim=8, causal=True)
    assert [tuple(p.shape) for p in core.parameters()] == [(4,)]
    assert [tuple(b.shape) for b in core.buffers()] == [(8,)] and "positions.u" in core.state_dict()


def test_dropout_drops_weights_only_while_training() -> None:
    for name in ("softmax", "diag"):
        core = linnet.create_attention(name, heads=1, head_dim=8, causal=True, dropout=0.5)
        q, k, v = (torch.randn(1, 1, 70, 8) for _ in range(3))
        core.eval()
        assert torch.equal(core(q, k, v), core(q, k, v))
        core.train()
        assert not torch.equal(core(q, k, v), core(q, k, v))


@pytest.mark.parametrize(
    "name,arguments,message",
    [
        ("nrom", {}, "did you mean 'norm'"),
        ("norm", {"phy": "elu"}, "did you mean 'phi'"),
        ("norm", {"phi": "relu"}, "norm.phi is 'relu'"),
        ("diag", {"block": 0}, "diag.block is 0"),
        ("diag", {"block": "x"}, "diag.block is 'x'"),
        ("kernelized", {"phi": "elu", "causal": False}, "kernelized has no options"),
        ("elu", {"normalise": False}, "did you mean 'normalize'"),
        ("norm", {"eps": 0.0}, "norm.eps is 0.0"),
        ("norm", {"xnorm": "none", "eps": 1e-3}, "xnorm = 'none' has no eps"),
        ("lln", {"dropout": 0.1}, "lln cannot drop attention weights, only its output can be dropped: put nn.Dropout"),
        ("kernelized", {"dropout": 0.1, "causal": False}, "kernelized cannot drop attention weights"),
        ("norm", {"width": 30}, "heads must divide width"),
        ("norm", {"heads": 0}, "heads is 0"),
        ("norm", {"causal": None}, "causal is None"),
        ("norm", {"width": 12, "heads": 4}, "even head width"),
    ],
)
def test_bad_names_and_options_are_one_line(name: str, arguments: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        linnet.create_mixer(name, **({"width": 32, "heads": 4, "causal": True} | arguments))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda m: m(torch.zeros(2, 5, 31)), "width 32"),
        (lambda m: m(torch.zeros(5, 32)), "(batch, tokens, width)"),
        (lambda m: m(torch.zeros(2, 5, 32), key_mask=torch.ones(2, 6)), "key_mask has shape (2, 6)"),
        (lambda m: m.core(*[torch.zeros(2, 3, 5, 8)] * 3), "this core has 4"),
    ],
)
def test_bad_tensors_are_one_line(call, message: str) -> None:
    mixer = linnet.create_mixer("norm", width=32, heads=4, causal=True)
    with pytest.raises(InputError) as error:
        call(mixer)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_projections_start_as_in_the_released_code() -> None:
    """Xavier uniform: gain 1/sqrt(2) for queries, keys and values, but 1 in DiagAttention; biases 0."""
    for name, causal in FORMS:
        mixer = linnet.create_mixer(name, width=256, heads=4, causal=causal)
        if not hasattr(mixer, "qkv"):  # a gated unit has other projections
            continue
        bound = (6 / 512) ** 0.5 * (1.0 if name == "diag" else 2**-0.5)
        for weight in mixer.qkv.weight.chunk(mixer.parts):
            assert float(weight.detach().abs().max()) == pytest.approx(bound, rel=0.01)
        assert float(mixer.out.weight.detach().abs().max()) == pytest.approx((6 / 512) ** 0.5, rel=0.01)
        assert not mixer.qkv.bias.any() and not mixer.out.bias.any()
