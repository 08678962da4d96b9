"""The two FFNs against their equations, and the shape of their weights."""

import pytest
import torch
from torch.nn.functional import gelu, relu, silu

from linnet.models.ffn import FFN, GLU


@pytest.mark.parametrize(("name", "act"), [("silu", silu), ("gelu", gelu), ("relu", relu), ("identity", lambda x: x)])
def test_equations(name, act):
    x = torch.randn(2, 3, 8)
    glu = GLU(8, 5, name)
    (W1, W2), (b1, b2) = glu.enter.weight.chunk(2), glu.enter.bias.chunk(2)
    y = (act(x @ W1.T + b1) * (x @ W2.T + b2)) @ glu.leave.weight.T + glu.leave.bias
    torch.testing.assert_close(glu(x), y)
    ffn = FFN(8, 5, name)
    y = act(x @ ffn.enter.weight.T + ffn.enter.bias) @ ffn.leave.weight.T + ffn.leave.bias
    torch.testing.assert_close(ffn(x), y)


@pytest.mark.parametrize("unit", [GLU, FFN])
def test_dropout_acts_inside_and_while_training_only(unit):
    x = torch.randn(64, 8)
    plain = unit(8, 40, "gelu")
    half = unit(8, 40, "gelu", 0.5)
    half.load_state_dict(plain.state_dict())
    assert torch.equal(half.eval()(x), plain(x))
    drawn = torch.stack([half.train()(x) for _ in range(2000)])
    assert not torch.allclose(drawn[0], drawn[1])
    torch.testing.assert_close(drawn.mean(dim=0), plain(x), atol=0.05, rtol=0)  # the last matrix comes after it
