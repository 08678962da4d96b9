"""Reformer: its hash finds neighbors, depends only on the row, survives half precision; q and k share a projection."""

import pytest
import torch

import linnet
from linnet.testing import check_attention, contract_difference


def reformer(**options) -> linnet.attention.base.Core:
    return linnet.create_attention("reformer", heads=2, head_dim=16, causal=False, **options)


@pytest.mark.parametrize(
    "options", [{"chunk": 8, "scale": "head_dim"}, {"chunk": 1, "rounds": 3}, {"chunk": 5, "max_buckets": 2}]
)
def test_contract(options: dict) -> None:
    check_attention("reformer", causal=False, options=options, lengths=(1, 7, 64, 100))


@pytest.mark.parametrize(("scale", "divisor"), [("none", 1), ("head_dim", 4)])
def test_one_chunk_is_attention_with_unit_keys_to_all_others(scale: str, divisor: int) -> None:
    q, v = (torch.randn(1, 2, 50, 16) for _ in range(2))
    scores = q @ torch.nn.functional.normalize(q, dim=-1).mT / divisor
    expected = scores.masked_fill(torch.eye(50, dtype=torch.bool), -torch.inf).softmax(dim=-1) @ v
    torch.testing.assert_close(reformer(scale=scale)(q, q, v), expected)
    assert torch.allclose(reformer()(q[:, :, :1], q[:, :, :1], v[:, :, :1]), v[:, :, :1])  # itself, if nothing else


def test_tokens_of_one_direction_find_each_other() -> None:
    """24 groups of 16 tokens, scattered over the row: a chunk of 16 holds most of a token's own group."""
    direction = 30 * torch.nn.functional.normalize(torch.randn(24, 16), dim=-1)
    group = torch.randperm(384) % 24
    q = (direction[group] + 0.1 * torch.randn(384, 16)).expand(1, 2, -1, -1)
    same = (group[:, None] == group) & ~torch.eye(384, dtype=torch.bool)
    seen = [(reformer(chunk=16, rounds=rounds).weights(q, q)[0] > 0)[:, same].float().mean() for rounds in (1, 4)]
    assert seen[0] > 0.6 and seen[1] > seen[0]
    weight = (reformer(chunk=16, rounds=4).weights(q, q) * same).sum(dim=-1)
    assert weight.mean() > 0.9


def test_the_order_of_a_row_is_its_own() -> None:
    core = reformer(chunk=4)
    q, v = torch.randn(1, 2, 40, 16), torch.randn(1, 2, 40, 16)
    alone = core(q, q, v)
    for left, right in ((3, 0), (100, 60)):
        wide_q, wide_v = (torch.nn.functional.pad(x, (0, 0, left, right), value=9.0) for x in (q, v))
        mask = torch.zeros(1, 40 + left + right, dtype=torch.bool)
        mask[:, left : left + 40] = True
        order = core._order(wide_q, mask)[..., :40] - left
        assert torch.equal(order, core._order(q, None))
        assert contract_difference(core(wide_q, wide_q, wide_v, key_mask=mask)[:, :, left : left + 40], alone) < 1e-6


def test_a_half_model_hashes_alike() -> None:
    core, q = reformer(chunk=8), torch.randn(1, 2, 200, 16).bfloat16()
    before = core._order(q.float(), None)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(reformer(chunk=8).to(dtype).rotations.float() * 32 % 1, torch.zeros(2, 16, 128))
    core = core.bfloat16()
    assert torch.equal(core._order(q, None), before)


def test_queries_and_keys_are_one_projection() -> None:
    mixer = linnet.create_mixer("reformer", width=32, heads=2, causal=False)
    assert mixer.qkv.weight.shape == (64, 32)
    q, k, v = mixer._split(torch.randn(1, 9, 32))
    assert q is k and q.shape == v.shape == (1, 2, 9, 16)
    mixer(torch.randn(2, 70, 32)).square().sum().backward()
    assert (mixer.qkv.weight.grad.abs().sum(dim=1) > 0).all()
