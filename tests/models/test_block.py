"""One layer: pre- and post-norm follow their equations, parallel mechanisms, a unit without FFN, the norms."""

import pytest
import torch

from linnet.config import parse_section
from linnet.models.block import Block, create_norm
from linnet.models.config import ModelConfig


def block(layer="norm", **fields):
    table = {"layers": [layer], "width": 16, "heads": 2, "ffn_width": 24, "vocab_size": 5, "causal": True, **fields}
    return Block(parse_section(ModelConfig, table, "model"), layer).double().eval()


@pytest.mark.parametrize("norm", ["srms", "scale", "rms", "layer"])
def test_pre_and_post_norm(norm):
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    b = block(norm=norm, norm_position="pre")
    y = x + b.mixers[0](b.mixer_norm(x))
    torch.testing.assert_close(b(x), y + b.ffn(b.ffn_norm(y)))
    b = block(norm=norm, norm_position="post")
    y = b.mixer_norm(x + b.mixers[0](x))
    torch.testing.assert_close(b(x), b.ffn_norm(y + b.ffn(y)))


def test_a_gated_unit_is_a_whole_layer():
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    b = block("flash", norm="scale", ffn="none")
    torch.testing.assert_close(b(x), x + b.mixers[0](b.mixer_norm(x)))
    b = block("flash", norm="layer", ffn="none", norm_position="post")
    torch.testing.assert_close(b(x), b.mixer_norm(x + b.mixers[0](x)))
    assert not any("ffn" in name for name in b.state_dict())


def test_parallel_mechanisms_are_averaged():
    x = torch.randn(2, 70, 16, dtype=torch.float64)
    b = block("diag+norm", norm_position="post")
    diag, norm = b.mixers
    assert (diag.core.name, norm.core.name) == ("diag", "norm")
    y = b.mixer_norm(x + (diag(x) + norm(x)) / 2)
    torch.testing.assert_close(b(x), b.ffn_norm(y + b.ffn(y)))


@pytest.mark.parametrize("layer", ["diag+norm", "softmax+lln+elu"])
def test_parallel_mechanisms_have_a_state_each(layer):
    x = torch.randn(2, 70, 16, dtype=torch.float64)
    b = block(layer)
    first, state = b.prefill(x[:, :40], None, None)
    second, state = b.prefill(x[:, 40:69], None, state)
    third, state = b.step(x[:, 69:], state)
    assert len(state) == len(b.mixers)
    torch.testing.assert_close(torch.cat([first, second, third], dim=1), b(x))


def test_norms():
    x = torch.randn(3, 16, dtype=torch.float64)
    scale = x.square().mean(dim=-1, keepdim=True).sqrt()
    kinds = ("srms", "scale", "rms", "layer")
    srms, one, rms, layer = norms = [create_norm(kind, 16).double() for kind in kinds]
    assert [sum(p.numel() for p in norm.parameters()) for norm in norms] == [0, 1, 16, 32]
    torch.testing.assert_close(srms(x), x / scale)
    with torch.no_grad():
        one.gain.fill_(3.0)
    torch.testing.assert_close(one(x), 3 * x / scale)
    torch.testing.assert_close(rms(x), x / scale, rtol=1e-5, atol=1e-5)
    centered = x - x.mean(dim=-1, keepdim=True)
    scale = centered.std(dim=-1, keepdim=True, correction=0)
    torch.testing.assert_close(layer(x), centered / scale, rtol=1e-4, atol=1e-4)


def test_dropout_acts_on_both_branches_while_training():
    torch.manual_seed(0)
    x, b = torch.randn(1, 200, 16, dtype=torch.float64), block(dropout=0.5).train()
    with torch.no_grad():
        b.ffn.leave.weight.zero_()
        b.ffn.leave.bias.zero_()
    y = b(x) - x
    assert 0.4 < (y == 0).double().mean() < 0.6
