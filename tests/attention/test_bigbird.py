"""BigBird: which blocks see which, random ones without repetition, and the last block of each row."""

import pytest
import torch

import linnet
from linnet.attention.bigbird import NONE
from linnet.ops.masks import layout_of_masks
from linnet.testing import check_attention


def bigbird(**options) -> linnet.attention.base.Core:
    return linnet.create_attention("bigbird", heads=4, head_dim=8, causal=False, **options)


def blocks(core: linnet.attention.base.Core, N: int) -> torch.Tensor:
    """(H, n, n): whether a block of queries sees a block of keys, read from the weights."""
    q = torch.zeros(1, 4, N, 8)
    w = core.options.block
    return (core.weights(q, q)[0] > 0)[:, ::w, ::w]


@pytest.mark.parametrize("options", [{"block": 8}, {"block": 1, "random": 5}, {"block": 100, "random": 0}])
def test_contract(options: dict) -> None:
    check_attention("bigbird", causal=False, options=options, lengths=(1, 7, 64, 100))


def test_every_block_sees_eight_and_the_ends_see_all() -> None:
    see, n = blocks(bigbird(block=2), 60), 30
    i = torch.arange(n)
    assert see[:, [0, n - 1]].all()
    assert see[:, :, [0, n - 1]].all()
    assert see[:, (i[:, None] - i).abs() <= 1].all()
    assert (see[:, 2:-2].sum(dim=2) == 2 + 3 + 3).all()
    assert (see[:, [1, -2]].sum(dim=2) == 1 + 3 + 3).all()  # where the window holds a global block


def test_random_blocks_differ_by_head_and_row_and_reach_everything() -> None:
    see = torch.stack([blocks(bigbird(block=1), 20) for _ in range(30)]).float()  # 30 seeds
    assert not torch.equal(see[0, 0], see[0, 1]) and not torch.equal(see[0], see[1])
    i = torch.arange(20)
    free = ((i[:, None] - i).abs() > 1) & (i > 0) & (i < 19) & (i[:, None] > 1) & (i[:, None] < 18)
    chosen = see.mean(dim=(0, 1))[free]  # each of 15 free blocks, 3 of which are drawn: 120 trials
    assert abs(chosen.mean() - 3 / 15) < 1e-6 and chosen.min() > 0.05 and chosen.max() < 0.4


def test_few_blocks_are_softmax() -> None:
    core = bigbird(block=8)
    q, k, v = (torch.randn(2, 4, 53, 8) for _ in range(3))
    torch.testing.assert_close(core(q, k, v), torch.nn.functional.scaled_dot_product_attention(q, k, v))


def test_the_last_block_is_that_of_each_row() -> None:
    core = bigbird(block=4)
    real = torch.stack([torch.arange(80) < n for n in (80, 33)])
    seen, last = core._seen(layout_of_masks(2, 80, real, None, real.device), 2)
    assert last.tolist() == [19, 8]
    assert (seen[1, :, :9][seen[1, :, :9] != NONE] <= 8).all()
    alone, _ = core._seen(layout_of_masks(1, 33, None, None, real.device), 1)
    assert torch.equal(seen[1, :, :9], alone[0])


def test_the_seed_is_saved_with_the_weights() -> None:
    one, other = bigbird(), bigbird()
    assert one.seed != other.seed
    other.load_state_dict(one.state_dict())
    assert one.seed == other.seed
    assert bigbird().bfloat16().seed.dtype == torch.int64
