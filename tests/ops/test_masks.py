"""Positions, runs and visibility, on rows small enough to write down."""

import pytest
import torch

from linnet.ops import exp_attention, linear_attention, reference
from linnet.ops.masks import layout_of_masks, masked_clock, visible_mask

CPU = torch.device("cpu")


def test_queries_of_another_sequence_have_a_layout_of_their_own() -> None:
    keys = layout_of_masks(2, 4, torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]]), None, CPU)
    where = keys.seen_by(3)
    assert where.of_queries.real is None and where.of_queries.position.tolist() == [0, 1, 2]
    assert torch.equal(where.real, keys.real) and keys.of_queries is keys
    assert visible_mask(where, False).shape == (2, 1, 1, 4)


def test_a_plain_row_counts_from_zero() -> None:
    where = layout_of_masks(2, 4, None, None, CPU)
    assert where.position.tolist() == [0, 1, 2, 3] and where.length == 4
    assert where.real is None and where.run is None


def test_positions_count_from_the_first_real_token() -> None:
    mask = torch.tensor([[0, 0, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    where = layout_of_masks(3, 6, mask, None, CPU)
    assert where.position.tolist() == [[0, 0, 0, 1, 2, 2], [0, 1, 2, 3, 4, 5], [0] * 6]
    assert where.length.tolist() == [3, 6, 0]
    assert masked_clock(where, 3).tolist()[2] == [-1] * 6  # no time passes in a row without a real token


def test_a_segment_is_a_maximal_run() -> None:
    ids = torch.tensor([[5, 5, 2, 2, 5, 5]])
    where = layout_of_masks(1, 6, None, ids, CPU)
    assert where.run.tolist() == [[0, 0, 1, 1, 2, 2]] and where.position.tolist() == [[0, 1, 0, 1, 0, 1]]


def test_padding_belongs_to_its_neighbor() -> None:
    ids, mask = torch.tensor([[0, 1, 1, 2, 2, 0]]), torch.tensor([[0, 1, 1, 1, 1, 0]])
    where = layout_of_masks(1, 6, mask, ids, CPU)
    assert where.run.tolist() == [[1, 1, 1, 2, 2, 2]] and where.position.tolist() == [[0, 0, 1, 0, 1, 1]]
    assert where.length.tolist() == [2]


def test_visible() -> None:
    mask, ids = torch.tensor([[1, 0, 1, 1]]), torch.tensor([[0, 0, 0, 1]])
    see = visible_mask(layout_of_masks(1, 4, mask, ids, CPU), causal=True)
    assert see[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    "op",
    [linear_attention, exp_attention, reference.linear_attention, reference.exp_attention],
    ids=["linear", "exp", "reference-linear", "reference-exp"],
)
def test_a_public_op_compiles_to_one_graph(op) -> None:
    torch._dynamo.reset()
    q, k, v = torch.rand(3, 1, 2, 70, 8)

    def attend(q, k, v):
        return op(q, k, v, causal=True, return_state=True)

    o, state = torch.compile(attend, fullgraph=True, backend="aot_eager")(q, k, v)
    assert len(state) == len(attend(q, k, v)[1])
    assert torch.allclose(o, attend(q, k, v)[0], atol=1e-6)
