"""One layer: pre- and post-norm follow their equations, parallel mechanisms, a unit without FFN, the norms."""

import pytest
import torch

from linnet.config import parse_config_section
from linnet.models.block import Block, create_block_norm
from linnet.models.config import ModelConfig, split_layer_config


def block(layer="norm", **fields):
    table = {"layers": [layer], "width": 16, "heads": 2, "ffn_width": 24, "vocab_size": 5, "causal": True, **fields}
    return Block(parse_config_section(ModelConfig, table, "model"), layer).double().eval()


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


def test_concatenated_mechanisms_share_the_heads():
    """One projection in and one out, as for a single mechanism; the first head is diag's, the second norm's."""
    x = torch.randn(2, 70, 16, dtype=torch.float64)
    b = block("diag|norm", norm_position="post")
    weight = torch.stack([part.qkv.weight.unflatten(0, (3, 8)) for part in b.mixers], dim=1)  # (3, 2, 8, M)
    q, k, v = (x @ weight.flatten(0, 2).T).unflatten(2, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    o = [part.core(*(y[:, i : i + 1] for y in (q, k, v))) for i, part in enumerate(b.mixers)]
    out = torch.cat([part.out.weight for part in b.mixers], dim=1)  # (M, M)
    y = b.mixer_norm(x + torch.cat(o, dim=1).transpose(1, 2).flatten(2) @ out.T)
    torch.testing.assert_close(b(x), b.ffn_norm(y + b.ffn(y)))


def test_concatenation_adds_only_the_angles():
    def count(layer):
        return sum(p.numel() for p in block(layer).parameters())

    assert count("diag|norm") == count("norm") + 4  # the D/2 angles of a second mechanism
    assert (
        count("diag+norm")
        == count("diag>norm")
        == 2 * count("norm") - sum(p.numel() for name, p in block("norm").named_parameters() if "mixers" not in name)
    )


def test_the_parts_of_a_concatenation_start_like_a_whole():
    config = {"width": 256, "heads": 4}
    whole, parts = (Block(parse_config_section(ModelConfig, table, "model"), table["layers"][0]) for table in (
        {"layers": [layer], "ffn_width": 8, "vocab_size": 5, "causal": True, **config} for layer in ("elu", "elu|elu")
    ))  # fmt: skip
    for part in parts.mixers:
        for name in ("qkv", "out"):
            found, wanted = (getattr(m, name).weight.detach().abs().max() for m in (part, whole.mixers[0]))
            assert float(found) == pytest.approx(float(wanted), rel=0.01)
    assert parts.mixers[0].out.bias is not None and parts.mixers[1].out.bias is None


def test_chained_mechanisms_run_one_after_the_other():
    x = torch.randn(2, 70, 16, dtype=torch.float64)
    b = block("diag>norm")
    diag, norm = b.mixers
    y = x + norm(diag(b.mixer_norm(x)))
    torch.testing.assert_close(b(x), y + b.ffn(b.ffn_norm(y)))


@pytest.mark.parametrize("layer", ["diag+norm", "softmax+lln+elu", "diag|norm", "elu|lln", "diag>norm", "lln>elu>diag"])
def test_parallel_mechanisms_have_a_state_each(layer):
    x = torch.randn(2, 70, 16, dtype=torch.float64)
    b = block(layer)
    first, state = b.prefill(x[:, :40], None, None)
    second, state = b.prefill(x[:, 40:69], None, state)
    third, state = b.step(x[:, 69:], state)
    assert len(state) == len(b.mixers) == len(split_layer_config(layer)[1])
    torch.testing.assert_close(torch.cat([first, second, third], dim=1), b(x))


def test_norms():
    x = torch.randn(3, 16, dtype=torch.float64)
    scale = x.square().mean(dim=-1, keepdim=True).sqrt()
    kinds = ("srms", "scale", "rms", "layer")
    srms, one, rms, layer = norms = [create_block_norm(kind, 16).double() for kind in kinds]
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
