"""AdamW against its equations, its state as tensors, and gradients that are means over all terms."""

import pytest
import torch
from torch import nn

from linnet.config import TrainConfig
from linnet.errors import LinnetError
from linnet.train.optim import finish_optim_gradients, load_optimizer, make_optimizer, optimizer_tensors


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def gradients(net: nn.Module, value: float) -> None:
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, value)


def test_two_updates_are_those_of_the_equations():
    train = TrainConfig(lr=0.1, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.3)
    net, m, v = model(), 0.0, 0.0
    optimizer = make_optimizer(net, train)
    expected = {name: parameter.detach().double() for name, parameter in net.named_parameters()}
    for n, g in enumerate([0.5, -2.0], 1):
        gradients(net, g)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        update = (m / (1 - 0.9**n)) / ((v / (1 - 0.98**n)) ** 0.5 + 1e-6)
        expected = {name: w * (1 - 0.1 * 0.3) - 0.1 * update for name, w in expected.items()}  # decay on all of them
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), expected[name], rtol=1e-5, atol=1e-6)


def test_the_state_comes_back():
    net, train = model(), TrainConfig()
    optimizer = make_optimizer(net, train)
    assert optimizer_tensors(net, optimizer) == {}
    gradients(net, 0.5)
    optimizer.step()
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(net, optimizer).items()}
    assert set(saved) == {f"{m}/{n}" for m in ("exp_avg", "exp_avg_sq", "step") for n, _ in net.named_parameters()}
    other = model()
    other.load_state_dict(net.state_dict())
    again = make_optimizer(other, train)
    load_optimizer(other, again, saved)
    for _ in range(2):
        for n, o in ((net, optimizer), (other, again)):
            gradients(n, -0.3)
            o.step()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    assert float(saved["step/0.weight"]) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda saved: saved.pop("exp_avg/0.bias"), "0.bias"),
        (lambda saved: saved.update({"exp_avg/0.bias": torch.zeros(5)}), "0.bias"),
        (lambda saved: saved.update({"exp_avg/9.bias": torch.zeros(5)}), "9.bias"),
    ],
)
def test_the_state_of_another_model_is_refused(change, named):
    net = model()
    optimizer = make_optimizer(net, TrainConfig())
    gradients(net, 0.5)
    optimizer.step()
    saved = optimizer_tensors(net, optimizer)
    change(saved)
    with pytest.raises(LinnetError, match=named):
        load_optimizer(net, make_optimizer(net, TrainConfig()), saved)


def test_gradients_are_divided_and_clipped():
    net = model()
    size = sum(parameter.numel() for parameter in net.parameters())
    gradients(net, 6.0)
    assert finish_optim_gradients(net, 3, clip=0.0) == pytest.approx(2 * size**0.5)
    assert all(bool((parameter.grad == 2).all()) for parameter in net.parameters())
    assert finish_optim_gradients(net, 1, clip=0.5) == pytest.approx(2 * size**0.5)
    assert finish_optim_gradients(net, 1, clip=9.0) == pytest.approx(0.5)
    gradients(net, 0.0)
    assert finish_optim_gradients(net, 1, clip=0.5) == 0


def test_entries_are_clipped_by_their_value():
    net = model()
    gradients(net, 6.0)
    net[0].weight.grad[0, 0] = -0.2
    finish_optim_gradients(net, 2, 0.0, clip_value=1.0)
    assert float(net[0].weight.grad[0, 0]) == pytest.approx(-0.1)
    assert float(net[0].weight.grad[1, 0]) == float(net[2].bias.grad[0]) == 1.0
