"""FlopCounterMode counts the custom ops by their formulas, forward and backward, with every backend."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import linnet
from linnet.ops import block_attention, exp_attention, linear_attention

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
    plain = op is linear_attention and backend == "torch" and not causal  # products that torch counts itself
    assert backward == (8 if plain else 10) * B * H * N * D * E


def test_blocks_count_whole() -> None:
    shapes = (B, H, N, D), (B, H, N, D), (B, H, N, E)
    forward, backward = counts(lambda q, k, v: block_attention(q, k, v, block=32, backend="cpu"), *shapes)
    assert forward == 2 * B * H * N * 32 * (D + E) and backward == 2 * B * H * N * 32 * (3 * D + 2 * E)


@pytest.mark.parametrize("name", linnet.list_attention())
def test_a_linear_mechanism_counts_linearly(name: str) -> None:
    """Twice as many tokens cost at most twice as much. On a CPU torch does not count its fused softmax."""
    causal = linnet.describe_attention(name)["causal"]
    mixer = linnet.create_mixer(name, width=32, heads=2, causal=causal)
    few, many = (counts(mixer, (1, N, 32)) for N in (1024, 2048))
    assert min(few) > 0
    if mixer.core.cost in ("N D^2", "N w D", "N m D"):
        assert all(few[i] < many[i] <= 2 * few[i] for i in (0, 1)), (few, many)
