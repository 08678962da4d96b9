"""FLASH: quadratic inside chunks, linear between them, as its equation reads; a state that does not grow."""

import pytest
import torch

import linnet
from linnet.testing import check_attention, contract_difference


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", [{"chunk": 1, "key_width": 4}, {"chunk": 300, "key_width": 4, "reach": 5}])
def test_contract(options: dict, causal: bool) -> None:
    check_attention("flash", causal=causal, options=options, lengths=(1, 7, 64, 100))


def test_one_chunk_is_flash_quad_divided_by_its_size() -> None:
    """In the first causal chunk the linear part reads nothing."""
    N = 16
    flash, quad = (
        linnet.create_mixer(name, width=8, heads=1, causal=True, key_width=6).core for name in ("flash", "flash_quad")
    )
    with torch.no_grad():
        quad.load_state_dict({**flash.state_dict(), "gamma": flash.gamma[[0, 2]], "beta": flash.beta[[0, 2]]})
    z = torch.randn(1, 1, N, 6)
    last = torch.ones(1, N, dtype=torch.bool)
    expected = quad.weights(z * (64 / N) ** -0.5, z * (64 / N) ** -0.5, last)[..., -1, :]  # which sees N tokens
    assert contract_difference(flash.weights(z, z)[..., -1, :], expected) < 1e-5


@pytest.mark.parametrize("causal", [True, False])
def test_between_chunks_it_is_linear_attention(causal: bool) -> None:
    core = linnet.create_mixer("flash", width=8, heads=1, causal=causal, key_width=6, chunk=8).core
    with torch.no_grad():
        core.bias.table.fill_(-100.0)  # no score is positive: the chunks themselves give nothing
    z = torch.randn(1, 1, 30, 6)
    A = core.weights(z, z)[0, 0]
    q, k = core.features(z, z, torch.arange(30))[1::2]
    own = torch.arange(30) // 8
    earlier = own[None, :] < own[:, None] if causal else torch.ones(30, 30, dtype=torch.bool)
    torch.testing.assert_close(A, torch.where(earlier, q[0, 0] @ k[0, 0].T / 8, 0))


def test_the_state_has_one_size() -> None:
    mixer = linnet.create_mixer("flash", width=8, heads=1, causal=True, key_width=6, chunk=8)
    x = torch.randn(2, 50, 8)
    _, early = mixer.prefill(x[:, :3])
    _, late = mixer.prefill(x[:, 3:], state=early)
    assert [part.shape for part in early] == [part.shape for part in late]
    assert late[-1].tolist() == [50, 50] and late[-2].sum(dim=1).tolist() == [2, 2]


def test_rows_of_unequal_length_go_on_from_their_own_chunk() -> None:
    mixer = linnet.create_mixer("flash", width=8, heads=1, causal=True, key_width=6, chunk=8).eval()
    x = torch.randn(3, 40, 8)
    lengths = (8, 19, 0)
    mask = torch.stack([torch.arange(20) >= 20 - n for n in lengths])  # padded on the left
    rows = torch.stack([torch.cat([torch.full((20 - n, 8), 9.0), x[b, :n]]) for b, n in enumerate(lengths)])
    _, state = mixer.prefill(rows, key_mask=mask)
    for t in range(20):
        y, state = mixer.step(torch.stack([x[b, n + t] for b, n in enumerate(lengths)])[:, None], state)
        if t in (0, 7, 12, 19):
            for b, n in enumerate(lengths):
                assert contract_difference(y[b, 0], mixer(x[b : b + 1, : n + t + 1])[0, -1]) < 1e-5
