"""MultiheadAttention replaces torch's: same numbers with softmax, same shapes, masks and state_dict for all."""

import pytest
import torch
from torch import nn

import linnet
from linnet.errors import InputError, UnsupportedError
from tests.attention.cases import ABOUT, NAMES


def pair(batch_first: bool) -> tuple[nn.MultiheadAttention, linnet.MultiheadAttention]:
    theirs = nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    ours = linnet.MultiheadAttention(16, 4, batch_first=batch_first, attention="softmax").eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_softmax_equals_torch(batch_first: bool, causal: bool) -> None:
    theirs, ours = pair(batch_first)
    q, k, v = (torch.randn(3, 7, 16) if batch_first else torch.randn(7, 3, 16) for _ in range(3))
    mask = nn.Transformer.generate_square_subsequent_mask(7) if causal else None
    ignore = torch.zeros(3, 7, dtype=torch.bool)
    ignore[1, 5:] = True
    for arguments in ({"key_padding_mask": ignore}, {}):
        y, A = theirs(q, k, v, attn_mask=mask, **_float_mask(arguments, mask))
        z, W = ours(q, k, v, attn_mask=mask, **arguments)
        assert torch.allclose(y, z, atol=1e-6) and torch.allclose(A, W, atol=1e-6)
    assert torch.allclose(ours(q, k, v, is_causal=causal)[0], z, atol=1e-6)


def _float_mask(arguments: dict, mask: torch.Tensor | None) -> dict:
    """torch wants both masks to have the same type."""
    if mask is None or not arguments:
        return arguments
    ignore = arguments["key_padding_mask"]
    return {"key_padding_mask": torch.zeros(ignore.shape).masked_fill(ignore, -torch.inf)}


def test_rows_without_a_batch_and_single_heads() -> None:
    theirs, ours = pair(True)
    x = torch.randn(7, 16)
    y, A = theirs(x, x, x, average_attn_weights=False)
    z, W = ours(x, x, x, average_attn_weights=False)
    assert torch.allclose(y, z, atol=1e-6) and torch.allclose(A, W, atol=1e-6) and W.shape == (4, 7, 7)


@pytest.mark.parametrize("name", NAMES)
def test_inside_a_transformer_encoder(name: str) -> None:
    """In training and in evaluation, where torch's own fused path must not be used."""
    if not ABOUT[name]["core"]:
        with pytest.raises(UnsupportedError, match=f"^{name} is a mixer only"):
            linnet.MultiheadAttention(16, 2, attention=name)
        return
    layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=0.0, batch_first=True)
    layer.self_attn = linnet.MultiheadAttention(16, 2, attention=name, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(2, 9, 16)
    ignore = torch.zeros(2, 9, dtype=torch.bool)
    ignore[0, 6:] = True
    trained = encoder(x, src_key_padding_mask=ignore)
    encoder.eval()
    with torch.no_grad():
        evaluated = encoder(x, src_key_padding_mask=ignore)
        alone = encoder(x[:1, :6])
    assert torch.allclose(trained, evaluated, atol=1e-5)
    assert torch.allclose(evaluated[:1, :6], alone, atol=1e-5)
    future = nn.Transformer.generate_square_subsequent_mask(9)
    if ABOUT[name]["causal"]:
        assert encoder(x, mask=future, is_causal=True).isfinite().all()
    else:
        with pytest.raises(UnsupportedError, match="no causal form"):
            encoder(x, mask=future, is_causal=True)


def test_what_it_refuses() -> None:
    with pytest.raises(UnsupportedError, match="add_bias_kv"):
        linnet.MultiheadAttention(16, 4, add_bias_kv=True)
    with pytest.raises(UnsupportedError, match="kdim"):
        linnet.MultiheadAttention(16, 4, kdim=8)
    with pytest.raises(InputError, match="num_heads must divide"):
        linnet.MultiheadAttention(16, 3)
    with pytest.raises(InputError, match="dropout"):
        linnet.MultiheadAttention(16, 4, dropout=0.1, attention="norm")
    ours = linnet.MultiheadAttention(16, 4, attention="norm", batch_first=True)
    x = torch.randn(1, 5, 16)
    with pytest.raises(UnsupportedError, match="attn_mask"):
        ours(x, x, x, attn_mask=torch.ones(5, 5, dtype=torch.bool))
    with pytest.raises(InputError, match="must be the same"):
        ours(x, x[:, :4], x[:, :4])
