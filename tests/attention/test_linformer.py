"""Linformer: the projection learns, positions count from the first real token, and the length that it was built for."""

import pytest
import torch

import linnet
from linnet.errors import InputError, UnsupportedError
from linnet.testing import check_attention, contract_difference


def test_the_projection_is_a_parameter_that_learns() -> None:
    mixer = linnet.create_mixer("linformer", width=16, heads=2, causal=False, k=4, max_length=32)
    E = dict(mixer.named_parameters())["core.E"]
    assert E.shape == (2, 4, 32)
    before = E.detach().clone()
    optimizer = torch.optim.SGD(mixer.parameters(), lr=0.1)
    mixer(torch.randn(3, 20, 16)).square().sum().backward()
    optimizer.step()
    moved = (E.detach() != before).any(dim=1)  # (heads, positions)
    assert moved[:, :20].all() and not moved[:, 20:].any()


def test_it_is_softmax_over_projected_keys_and_values() -> None:
    core = linnet.create_attention("linformer", heads=2, head_dim=4, causal=False, k=3, max_length=16)
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    E = core.E[:, :, :9]
    expected = torch.stack([(q[0, h] @ (E[h] @ k[0, h]).mT / 2).softmax(dim=1) @ E[h] @ v[0, h] for h in range(2)])
    assert torch.allclose(core(q, k, v)[0], expected, atol=1e-6)


def test_an_identity_projection_is_softmax_attention() -> None:
    core = linnet.create_attention("linformer", heads=1, head_dim=8, causal=False, k=12, max_length=12)
    core.E.data = torch.eye(12)[None]
    q, k, v = torch.randn(3, 2, 1, 12, 8)
    softmax = linnet.create_attention("softmax", heads=1, head_dim=8, causal=False)
    assert contract_difference(core(q, k, v), softmax(q, k, v)) < 1e-6


def test_a_padded_row_may_be_longer_than_the_projection() -> None:
    core = linnet.create_attention("linformer", heads=2, head_dim=4, causal=False, k=3, max_length=8)
    q, k, v = torch.randn(3, 1, 2, 20, 4)
    real = torch.zeros(1, 20, dtype=torch.bool)
    real[:, 11:19] = True
    alone = core(*(x[:, :, 11:19] for x in (q, k, v)))
    assert contract_difference(core(q, k, v, key_mask=real)[:, :, 11:19], alone) < 1e-6
    real[:, 10] = True
    for call in (lambda: core(q, k, v, key_mask=real), lambda: core.weights(q, k, key_mask=real)):
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value) == "a sequence of 9 tokens: linformer was built with max_length=8"


def test_few_projections_and_no_causal_form() -> None:
    check_attention("linformer", causal=False, options={"k": 1}, lengths=(1, 7, 64))
    with pytest.raises(UnsupportedError, match="linformer has no causal form: causal=False is allowed"):
        linnet.create_mixer("linformer", width=16, heads=2, causal=True)
