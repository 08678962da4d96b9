"""FlopCounterMode counts the custom ops by their formulas, forward and backward, with every backend."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import linnet
from linnet.ops import block_attention, exp_attention, linear_attention
from linnet.ops.pieces import Pieces, piece_attention

B, H, N, D, E = 2, 3, 130, 16, 24


def counts(call, *shapes: tuple[int, ...]) -> tuple[int, int]:
    """Operations of a call, and of its backward pass."""
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    with FlopCounterMode(display=False) as forward:
        o = call(*tensors)
    with FlopCounterMode(display=False) as backward:
        o.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize("op", [linear_attention, exp_attention])
@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("causal", [True, False])
def test_linear_forms_count_the_state(op, backend: str, causal: bool) -> None:
    shapes = (B, H, N, D), (B, H, N, D), (B, H, N, E)
    forward, backward = counts(lambda q, k, v: op(q, k, v, causal=causal, backend=backend), *shapes)
    assert forward == 4 * B * H * N * D * E
    plain = op is linear_attention and backend == "torch"  # products that torch counts itself
    kept = not causal and (plain or backend == "cpu")  # the state
    assert backward == (8 if kept else 10) * B * H * N * D * E


def test_blocks_count_whole() -> None:
    shapes = (B, H, N, D), (B, H, N, D), (B, H, N, E)
    forward, backward = counts(lambda q, k, v: block_attention(q, k, v, block=32, backend="cpu"), *shapes)
    assert forward == 2 * B * H * N * 32 * (D + E) and backward == 2 * B * H * N * 32 * (3 * D + 2 * E)


def test_pieces_count_the_keys_that_each_query_sees() -> None:
    rows = (B, H, N, D), (B, H, 9, D), (B, H, 9, E)
    spans = torch.tensor([[0, 9], [2, 4]]).view(1, 1, 2, 1, 2)  # the first half of the queries sees 9 keys
    pieces = Pieces(N // 2, spans, 9)
    forward, backward = counts(lambda q, k, v: piece_attention(q, k, v, None, pieces, 1.0), *rows)
    keys = N // 2 * (9 + 4)
    assert forward == 2 * B * H * keys * (D + E) and backward == 2 * B * H * keys * (3 * D + 2 * E)
    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as widest:
        torch.ops.linnet.cpu_pieces(
            *(torch.empty(row) for row in rows), None, torch.empty_like(spans), None, 65, 9, 1.0
        )
    assert widest.get_total_flops() == 2 * B * H * N * 9 * (D + E)


@pytest.mark.parametrize("name", linnet.list_attention())
def test_a_linear_mechanism_counts_linearly(name: str) -> None:
    """Each further token costs at most as much as those before. On a CPU torch does not count its fused softmax."""
    causal = linnet.describe_attention(name)["causal"]
    mixer = linnet.create_mixer(name, width=32, heads=2, causal=causal)
    few, twice, many = (counts(mixer, (1, N, 32)) for N in (1024, 2048, 4096))
    assert min(few) > 0
    if mixer.core.cost in ("N D^2", "N w D", "N m D"):
        for a, b, c in zip(few, twice, many, strict=True):  # the first and last tokens of a window see fewer keys
            assert a < b and c - b <= 2 * (b - a), (few, twice, many)
