"""replace_attention swaps the attention of torch's own models, keeps their weights, says what it did, and undoes it."""

import copy

import pytest
import torch
from torch import nn

import linnet
from linnet.errors import InputError, LinnetError, UnsupportedError
from tests.attention.cases import ABOUT, NAMES

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested tensors")
SIZES = {"d_model": 32, "nhead": 4, "num_encoder_layers": 2, "num_decoder_layers": 1, "dim_feedforward": 48}
CORES = [name for name in NAMES if ABOUT[name]["core"]]


def encoder(**more) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=48, batch_first=True, **more)
    return nn.TransformerEncoder(layer, 2)


def padded() -> tuple[torch.Tensor, torch.Tensor]:
    ignore = torch.zeros(2, 9, dtype=torch.bool)
    ignore[0, 6:] = True
    return torch.randn(2, 9, 32), ignore


def test_softmax_in_an_encoder_and_decoder_equals_torch(capsys) -> None:
    """With torch's default dropout, in evaluation, where torch has fused paths of its own."""
    model = nn.Transformer(**SIZES, batch_first=True).eval()
    source, ignore = padded()
    target, future = torch.randn(2, 7, 32), torch.ones(7, 7, dtype=torch.bool).triu(1)
    masks = {"src_key_padding_mask": ignore, "memory_key_padding_mask": ignore, "tgt_mask": future}
    with torch.no_grad():
        expected, weights = model(source, target, **masks), copy.deepcopy(model.state_dict())
        done = linnet.replace_attention(model, "softmax")
        y = model(source, target, **masks)
    assert torch.allclose(y, expected, atol=1e-5)
    assert [change.name for change in done] == [
        *("encoder.layers.0.self_attn", "encoder.layers.1.self_attn"),
        *("decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"),
    ]
    assert all(isinstance(model.get_submodule(change.name), linnet.MultiheadAttention) for change in done)
    state = model.state_dict()
    assert state.keys() == weights.keys() and all(torch.equal(state[name], weights[name]) for name in weights)
    printed = capsys.readouterr().out
    assert "encoder.layers.0.self_attn: softmax -> softmax" in printed
    assert printed.endswith("4 attention modules replaced; the weights are kept\n")


@pytest.mark.parametrize("name", CORES)
def test_every_mechanism_in_an_encoder(name: str) -> None:
    """The replacement takes effect in evaluation too, and padding stays inert; undo restores the very numbers."""
    model = encoder().eval()
    x, ignore = padded()
    with torch.no_grad():
        before = model(x, src_key_padding_mask=ignore)
        done = linnet.replace_attention(model, name)
        after, alone = model(x, src_key_padding_mask=ignore), model(x[:1, :6])
        assert not torch.allclose(after, before, atol=1e-5) or name == "softmax"
        assert torch.allclose(after[:1, :6], alone, atol=1e-5)
        done.undo()
        assert torch.equal(model(x, src_key_padding_mask=ignore), before)
    assert all(type(layer.self_attn) is nn.MultiheadAttention for layer in model.layers)


@pytest.mark.parametrize("name", CORES)
def test_every_mechanism_in_a_decoder_layer(name: str) -> None:
    """A decoder needs a causal form and cross-attention, and a refusal names the module that lacks it."""
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 48, dropout=0.0, batch_first=True), 1).eval()
    x, memory = torch.randn(2, 7, 32), torch.randn(2, 12, 32)
    future = nn.Transformer.generate_square_subsequent_mask(7)
    if not ABOUT[name]["causal"]:
        with pytest.raises(UnsupportedError, match=rf"^layers\.0\.self_attn: {name} has no causal form"):
            linnet.replace_attention(model, name)
    elif not ABOUT[name]["cross"]:
        with pytest.raises(UnsupportedError, match=rf"^layers\.0\.multihead_attn: {name} has no cross-attention"):
            linnet.replace_attention(model, name)
        assert type(model.layers[0].self_attn) is nn.MultiheadAttention, "nothing is half-done"
        linnet.replace_attention(model, name, modules="*.self_attn")
    else:
        linnet.replace_attention(model, name)
    with torch.no_grad():
        y = model(x, memory, tgt_mask=future)
        changed = model(torch.cat([x[:, :-1], torch.randn(2, 1, 32)], dim=1), memory, tgt_mask=future)
    if ABOUT[name]["causal"]:
        assert torch.allclose(y[:, :-1], changed[:, :-1], atol=1e-5), "reads the future"


def test_parameters_are_shared_and_stay_trained_after_undo() -> None:
    model = encoder(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # made before the replacement
    done = linnet.replace_attention(model, "lln")
    before = model.layers[0].self_attn.in_proj_weight.clone()
    model(torch.randn(2, 9, 32)).square().sum().backward()
    optimizer.step()
    done.undo()
    assert not torch.equal(model.layers[0].self_attn.in_proj_weight, before)
    model.double()
    done = linnet.replace_attention(model, "norm", phi="elu")
    assert model.layers[1].self_attn.core.options.phi == "elu"
    assert model(torch.randn(2, 9, 32).double()).dtype == torch.float64
    assert "new parameters" in str(done) and "phi='elu'" in str(done)


def test_dropout_is_each_module_s_own_or_the_given_one() -> None:
    model = encoder()
    linnet.replace_attention(model, "lln")
    assert model.layers[0].self_attn.dropout == 0.1 and model.layers[0].self_attn.drops_output
    linnet.replace_attention(model, "elu", dropout=0.0)
    assert model.layers[0].self_attn.dropout == 0.0


def test_replacing_twice_is_undone_in_order() -> None:
    model = encoder()
    first, second = linnet.replace_attention(model, "lln"), linnet.replace_attention(model, "elu", modules="layers.1.*")
    assert str(second).startswith("layers.1.self_attn: lln -> elu") and len(second) == 1
    with pytest.raises(LinnetError, match=r"^layers\.1\.self_attn has been replaced again: undo that first$"):
        first.undo()
    second.undo()
    first.undo()
    assert type(model.layers[1].self_attn) is nn.MultiheadAttention


def test_a_module_at_two_places_is_replaced_by_one() -> None:
    shared = nn.MultiheadAttention(32, 4, bias=False, batch_first=True)
    model = nn.ModuleDict({"a": shared, "b": shared})
    linnet.replace_attention(model, "lln")
    assert model["a"] is model["b"] and isinstance(model["a"], linnet.MultiheadAttention)
    assert model["a"].in_proj_weight is shared.in_proj_weight and model["a"].in_proj_bias is None


def test_other_widths_and_devices() -> None:
    model = nn.ModuleList([nn.MultiheadAttention(32, 4, kdim=8, vdim=12, batch_first=True).bfloat16()])
    done = linnet.replace_attention(model, "norm")  # whose positions would relate tokens of one sequence
    assert model[0].core.relative == "none" and "positions='none'" in str(done)
    key, value = torch.randn(2, 9, 8).bfloat16(), torch.randn(2, 9, 12).bfloat16()
    assert model[0](torch.randn(2, 5, 32).bfloat16(), key, value)[0].shape == (2, 5, 32)
    done.undo()
    with pytest.raises(UnsupportedError, match=r"^0: kdim=8, vdim=12: norm: positions='lrpe'"):
        linnet.replace_attention(model, "norm", positions="lrpe")
    with torch.device("meta"):
        linnet.replace_attention(encoder(), "lln")


def test_what_it_refuses() -> None:
    class Own(nn.MultiheadAttention):
        pass

    for module, reason in (
        (nn.MultiheadAttention(32, 4, add_bias_kv=True), "add_bias_kv and add_zero_attn are not supported"),
        (nn.MultiheadAttention(32, 4, add_zero_attn=True), "add_bias_kv and add_zero_attn are not supported"),
        (Own(32, 4), "it is a Own: only nn.MultiheadAttention itself"),
    ):
        with pytest.raises(UnsupportedError, match=f"^0: {reason}"):
            linnet.replace_attention(nn.Sequential(module), "lln")
    hooked = nn.Sequential(nn.MultiheadAttention(32, 4))
    hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedError, match=r"^0: it has hooks"):
        linnet.replace_attention(hooked, "lln")
    with pytest.raises(InputError, match="model is a str"):
        linnet.replace_attention("model", "lln")
    with pytest.raises(InputError, match=r"^model is itself an nn.MultiheadAttention"):
        linnet.replace_attention(nn.MultiheadAttention(32, 4), "lln")
    with pytest.raises(InputError, match=r"^model has no nn.MultiheadAttention"):
        linnet.replace_attention(nn.Linear(4, 4), "lln")
    with pytest.raises(InputError, match=r"^modules is 'decoder\.\*': it matches none of layers\.0\.self_attn"):
        linnet.replace_attention(encoder(), "lln", modules="decoder.*")
    with pytest.raises(InputError, match=r"^unknown attention 'llm': did you mean 'lln'.* all \d+$"):
        linnet.replace_attention(encoder(), "llm")
    with pytest.raises(InputError, match=r"^layers\.0\.self_attn: unknown key of lln 'phi': one of [a-z, ]+$"):
        linnet.replace_attention(encoder(), "lln", phi="elu")
    with pytest.raises(UnsupportedError, match=r"^layers\.0\.self_attn: flash is a mixer only.*; modules= selects"):
        linnet.replace_attention(encoder(), "flash")


def test_a_replaced_encoder_compiles_with_a_causal_mask_alone() -> None:
    """nn.TransformerEncoder is given the mask and not is_causal."""
    model = encoder(dropout=0.0).eval()
    linnet.replace_attention(model, "lln")
    x, future = torch.randn(2, 9, 32), nn.Transformer.generate_square_subsequent_mask(9)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, mask: model(x, mask=mask), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.allclose(compiled(x, future), model(x, mask=future), atol=1e-5)
