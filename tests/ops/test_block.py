"""block_attention equals its dense twin in values and gradients, with masks, segments and ragged ends."""

import itertools

import pytest
import torch

from linnet.errors import InputError
from linnet.ops import block_attention, reference
from tests.ops.cases import MASKS, grads, key_mask, relative, segments, specified

CASES = list(itertools.product((True, False), ("softmax", "rela"), MASKS, (False, True)))


@pytest.mark.parametrize("N,block", [(1, 4), (7, 4), (7, 16), (64, 8), (100, 16), (33, 1)])
@pytest.mark.parametrize("causal,kind,mask,packed", CASES)
def test_equals_reference(N: int, block: int, causal: bool, kind: str, mask: str | None, packed: bool) -> None:
    B, H, D, E = 2, 3, 4, 5
    leaves = [torch.randn(B, H, N, width, dtype=torch.float64, requires_grad=True) for width in (D, D, E)]
    real, ids = key_mask(mask, B, N), segments(B, N) if packed else None
    keep = specified(real, ids, B, N)
    results = []
    for fn in (reference.block_attention, block_attention):
        o = fn(*leaves, block=block, kind=kind, causal=causal, key_mask=real, segments=ids)
        assert o.isfinite().all()
        o = o * keep
        results.append([o, *grads([o], leaves)])
    for theirs, ours in zip(*results, strict=True):
        assert relative(ours, theirs) < 1e-10


def test_a_masked_row_gives_zeros() -> None:
    q = torch.randn(2, 1, 10, 4)
    real = torch.tensor([[False] * 10, [True] * 10])
    for kind in ("softmax", "rela"):
        o = block_attention(q, q, q, block=4, kind=kind, key_mask=real)
        assert (o[0] == 0).all() and (o[1] != 0).any()


@pytest.mark.parametrize("left,right", [(5, 0), (0, 5), (3, 4)])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_inert(left: int, right: int, causal: bool) -> None:
    q, k, v = (torch.randn(1, 2, 21, 4, dtype=torch.float64) for _ in range(3))
    wide = [torch.nn.functional.pad(x, (0, 0, left, right), value=9.0) for x in (q, k, v)]
    real = torch.zeros(1, left + 21 + right)
    real[:, left : left + 21] = 1
    padded = block_attention(*wide, block=8, causal=causal, key_mask=real)[:, :, left : left + 21]
    assert relative(padded, block_attention(q, k, v, block=8, causal=causal)) < 1e-12


def test_scale_and_half_precision() -> None:
    q, k, v = (torch.randn(1, 2, 40, 8) for _ in range(3))
    ours, theirs = (fn(q, k, v, block=16, scale=0.5) for fn in (block_attention, reference.block_attention))
    assert relative(ours, theirs) < 1e-5
    for kind in ("softmax", "rela"):
        o = block_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), block=16, kind=kind)
        assert o.dtype == torch.bfloat16 and relative(o.float(), block_attention(q, k, v, block=16, kind=kind)) < 0.05


@pytest.mark.parametrize(
    "arguments,message", [({"block": 0}, "block is 0"), ({"kind": "sofmax"}, "did you mean 'softmax'")]
)
def test_bad_input_is_one_line(arguments: dict, message: str) -> None:
    q = torch.zeros(1, 1, 4, 2)
    with pytest.raises(InputError) as error:
        block_attention(q, q, q, **arguments)
    assert message in str(error.value) and "\n" not in str(error.value)
