"""torch's own layers with linnet's attention inside equal themselves: what torch promises of them, case by case.

Each case is a public behavior of nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, their
stacks or nn.Transformer. docs/fidelity.md lists the behaviors that do not apply.
"""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

import linnet
from linnet.errors import LinnetError

M, H, B, T, N = 16, 4, 2, 5, 7


def swapped(module: nn.Module) -> nn.Module:
    """A copy whose attentions are linnet's, with the same weights."""
    module = copy.deepcopy(module)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.MultiheadAttention):
                ours = linnet.MultiheadAttention(
                    child.embed_dim, child.num_heads, child.dropout, child.in_proj_bias is not None,
                    kdim=child.kdim, vdim=child.vdim, batch_first=child.batch_first, dtype=child.out_proj.weight.dtype,
                )  # fmt: skip
                ours.load_state_dict(child.state_dict())
                setattr(parent, name, ours.train(child.training))
    return module


def same(theirs: nn.Module, *inputs: Tensor, **masks: object) -> None:
    """Values and all gradients agree."""
    ours, sides = swapped(theirs), []
    for module in (ours, theirs):
        leaves = [x.clone().requires_grad_() for x in inputs]
        y = module(*leaves, **masks)
        y = y[0] if isinstance(y, tuple) else y
        torch.manual_seed(0)
        y.backward(torch.randn_like(y))
        slopes = {name: p.grad for name, p in module.named_parameters()}
        sides.append((y, [x.grad for x in leaves], slopes))
    for a, b in zip(*sides, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def draw(tokens: int, batch_first: bool = True) -> Tensor:
    return torch.randn((B, tokens, M) if batch_first else (tokens, B, M), dtype=torch.float64)


def hidden(tokens: int) -> Tensor:
    """A padding mask, True where hidden, of rows of different lengths."""
    return torch.arange(tokens)[None] >= torch.tensor([[tokens], [tokens - 2]])


FLAGS = list(itertools.product([True, False], repeat=2))


@pytest.mark.parametrize(("batch_first", "norm_first"), FLAGS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
def test_encoder_layer(batch_first: bool, norm_first: bool, activation: str, mask: str) -> None:
    layer = nn.TransformerEncoderLayer(
        M, H, 32, 0.0, activation, batch_first=batch_first, norm_first=norm_first, dtype=torch.float64
    )
    masks: dict[str, object] = {"padding": {"src_key_padding_mask": hidden(N)}}.get(mask, {})
    if mask == "causal":
        masks = {"src_mask": nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.float64), "is_causal": True}
    same(layer, draw(N, batch_first), **masks)


@pytest.mark.parametrize(("batch_first", "norm_first"), FLAGS)
@pytest.mark.parametrize("padded", [False, True])
def test_decoder_layer(batch_first: bool, norm_first: bool, padded: bool) -> None:
    layer = nn.TransformerDecoderLayer(
        M, H, 32, 0.0, batch_first=batch_first, norm_first=norm_first, dtype=torch.float64
    )
    future = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    masks = {"tgt_key_padding_mask": hidden(T), "memory_key_padding_mask": hidden(N)} if padded else {}
    if padded:  # torch wants both masks of one type
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
    same(layer, draw(T, batch_first), draw(N, batch_first), tgt_mask=future, **masks)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("final", [False, True])
def test_stacks(layers: int, final: bool) -> None:
    norm = nn.LayerNorm(M, dtype=torch.float64) if final else None
    layer = nn.TransformerEncoderLayer(M, H, 32, 0.0, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, layers, copy.deepcopy(norm), enable_nested_tensor=False)
    same(encoder, draw(N), src_key_padding_mask=hidden(N))
    layer = nn.TransformerDecoderLayer(M, H, 32, 0.0, batch_first=True, dtype=torch.float64)
    same(nn.TransformerDecoder(layer, layers, copy.deepcopy(norm)), draw(T), draw(N), memory_key_padding_mask=hidden(N))


def test_whole_transformer() -> None:
    model = nn.Transformer(M, H, 2, 2, 32, 0.0, batch_first=True, dtype=torch.float64)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    masks = {"src_key_padding_mask": hidden(N), "memory_key_padding_mask": hidden(N)}
    same(model, draw(N), draw(T), tgt_mask=future, **masks)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch_first", "average"), FLAGS)
def test_attention_weights(bias: bool, batch_first: bool, average: bool) -> None:
    theirs = nn.MultiheadAttention(M, H, bias=bias, batch_first=batch_first, dtype=torch.float64)
    ours = swapped(nn.ModuleList([theirs]))[0]
    x, y = draw(T, batch_first), draw(N, batch_first)
    found, expected = (
        module(x, y, y, key_padding_mask=hidden(N), average_attn_weights=average) for module in (ours, theirs)
    )
    torch.testing.assert_close(found, expected)
    assert ours(x, y, y, need_weights=False)[1] is None


@pytest.mark.parametrize("widths", [{"kdim": 10}, {"vdim": 6}, {"kdim": 10, "vdim": 6}])
def test_keys_and_values_of_other_widths(widths: dict[str, int]) -> None:
    theirs = nn.MultiheadAttention(M, H, batch_first=True, dtype=torch.float64, **widths)
    k, v = (torch.randn(B, N, widths.get(name, M), dtype=torch.float64) for name in ("kdim", "vdim"))
    ours = swapped(nn.ModuleList([theirs]))[0]
    x = draw(T)
    torch.testing.assert_close(ours(x, k, v), theirs(x, k, v))


def test_no_batch_and_evaluation_without_gradients() -> None:
    theirs = nn.MultiheadAttention(M, H, dtype=torch.float64)
    ours, x = swapped(nn.ModuleList([theirs]))[0], torch.randn(N, M, dtype=torch.float64)
    torch.testing.assert_close(ours(x, x, x), theirs(x, x, x))
    layer = nn.TransformerEncoderLayer(M, H, 32, batch_first=True, dtype=torch.float64).eval()
    x = draw(N)
    with torch.no_grad():  # torch takes its fused path here
        torch.testing.assert_close(swapped(layer)(x), layer(x))


def test_wrong_shapes_and_widths_are_refused() -> None:
    ours = linnet.MultiheadAttention(M, H, batch_first=True)
    x = torch.randn(B, N, M)
    for wrong in (torch.randn(B, N, M + 1), torch.randn(N), torch.randn(B, N, M, 1)):
        with pytest.raises(LinnetError):
            ours(wrong, x, x)
    with pytest.raises(LinnetError):
        ours(x, x, x, key_padding_mask=torch.zeros(B, N + 1, dtype=torch.bool))
    with pytest.raises(LinnetError):
        ours(x, x, x, attn_mask=torch.zeros(N + 1, N))
    with pytest.raises(LinnetError):
        linnet.MultiheadAttention(M, 3)


def test_dropout_acts_in_training_only_and_copies_are_independent() -> None:
    layer = swapped(nn.TransformerEncoderLayer(M, H, 32, 0.5, batch_first=True))
    x = torch.randn(B, N, M)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.self_attn.out_proj.weight.add_(1)
    assert not torch.equal(twin(x), layer(x))
