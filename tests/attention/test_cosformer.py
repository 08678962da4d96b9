"""cosFormer: its weights, the length that it was built for, and the position that its state carries."""

import math

import pytest
import torch

import linnet
from linnet.errors import InputError
from linnet.testing import check_attention


def test_weights_are_the_cosine_of_the_distance() -> None:
    """With equal queries and keys only the cosine is left."""
    core = linnet.create_attention("cosformer", heads=1, head_dim=4, causal=False, max_length=10)
    x = torch.ones(1, 1, 6, 4, dtype=torch.float64)
    t = torch.arange(6, dtype=torch.float64)
    near = torch.cos(math.pi * (t[:, None] - t) / 20)
    assert torch.allclose(core.weights(x, x)[0, 0], near / near.sum(dim=1, keepdim=True))
    v = torch.eye(6, dtype=torch.float64)[None, None]
    assert torch.allclose(core(x, x, v)[0, 0], near / near.sum(dim=1, keepdim=True))


@pytest.mark.parametrize("causal", [True, False])
def test_contract_at_the_maximal_length(causal: bool) -> None:
    check_attention("cosformer", causal=causal, options={"max_length": 100}, lengths=(1, 64, 100))


def test_beyond_the_maximal_length_is_one_line() -> None:
    mixer = linnet.create_mixer("cosformer", width=16, heads=2, causal=True, max_length=8)
    x = torch.randn(2, 9, 16)
    real = torch.ones(2, 9, dtype=torch.bool)
    real[:, 0] = False
    _, state = mixer.prefill(x[:, :8])
    calls = [lambda: mixer(x), lambda: mixer.prefill(x), lambda: mixer.step(x[:, :1], state), lambda: mixer.weights(x)]
    for call in calls:
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value) == "a sequence of 9 tokens: cosformer was built with max_length=8"
    assert mixer(x, key_mask=real).shape == x.shape  # padding is no token
    assert mixer(x, segments=(torch.arange(9) > 3).long().expand(2, 9)).shape == x.shape
