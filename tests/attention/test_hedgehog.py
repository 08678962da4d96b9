"""Hedgehog: its features, its start, and that its maps learn to imitate softmax."""

import torch

import linnet
from linnet.ops.masks import layout_of_masks


def test_the_weights_are_products_of_exponentials_of_both_signs():
    core = linnet.create_attention("hedgehog", heads=2, head_dim=4, causal=False, features=6).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.normal_()
    q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)

    def phi(x, side):
        u = x @ core.get_parameter(f"W_{side}").mT + core.get_parameter(f"b_{side}")
        return torch.cat([u.exp(), (-u).exp()], dim=-1)

    A = phi(q, "q") @ phi(k, "k").mT
    torch.testing.assert_close(core.weights(q, k), A / A.sum(dim=-1, keepdim=True))


def test_it_starts_at_the_identity_and_scales_replace_it():
    core = linnet.create_attention("hedgehog", heads=2, head_dim=4, causal=False, features=6)
    assert torch.equal(core.W_q[:, :4], torch.eye(4).repeat(2, 1, 1)) and not core.b_k.any()
    assert core.W_k[:, 4:].abs().min() > 0, "a row of zeros has no gradient"
    core.choose_scales(torch.tensor([0.5, 2.0]), torch.tensor([1.0, 3.0]))
    assert torch.equal(core.W_q[1, :4], 2 * torch.eye(4)) and torch.equal(core.W_k[0, :4], torch.eye(4))


def test_the_maps_learn_to_imitate_softmax():
    softmax = linnet.create_attention("softmax", heads=2, head_dim=8, causal=False)
    core = linnet.create_attention("hedgehog", heads=2, head_dim=8, causal=False)
    mix = torch.randn(8, 8) * 0.6
    optimizer = torch.optim.Adam(core.parameters(), lr=2e-2)
    errors = []
    for _ in range(150):
        q, v = torch.randn(2, 4, 2, 24, 8)
        k = q @ mix + 0.3 * torch.randn(4, 2, 24, 8)
        wanted = softmax(q, k, v)
        loss = (core(q, k, v) - wanted).square().mean() / wanted.var()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(float(loss.detach()))
    assert sum(errors[-10:]) < 0.7 * sum(errors[:10])


def test_a_state_of_twice_the_rows():
    core = linnet.create_attention("hedgehog", heads=2, head_dim=4, causal=True, features=6)
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    o, state = core.prefill(q, k, v)
    assert [tuple(part.shape) for part in state] == [(1, 2, 12, 4), (1, 2, 12), (1, 2, 12)]
    torch.testing.assert_close(o, core.weights(q, k) @ v)
    log_q = core.log_features(q, k, layout_of_masks(1, 9, None, None, q.device), True).q
    assert log_q.shape == (1, 2, 9, 12)
