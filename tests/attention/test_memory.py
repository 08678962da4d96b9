"""A mechanism whose cost is not quadratic never holds anything of N x N entries, forward or backward."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import linnet
from tests.attention.cases import ABOUT, FORMS

N = 4096


class Largest(TorchDispatchMode):
    """Remembers the entries of the largest memory that an operation has made."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                self.entries = max(self.entries, x.untyped_storage().nbytes() // x.element_size())
        return out


def largest(name: str, causal: bool, key_mask: Tensor | None) -> int:
    options = {} if ABOUT[name]["any_length"] else {"max_length": N}
    mixer = linnet.create_mixer(name, width=8, heads=1, causal=causal, **options)
    x = torch.randn(1, N, 8, requires_grad=True)
    with Largest() as found:
        mixer(x, key_mask=key_mask).sum().backward()
    return found.entries


@pytest.mark.parametrize("name,causal", [form for form in FORMS if "N^2" not in ABOUT[form[0]]["cost"]])
def test_nothing_is_quadratic(name: str, causal: bool) -> None:
    real = torch.ones(1, N, dtype=torch.bool)
    real[:, :1000] = False
    assert max(largest(name, causal, None), largest(name, causal, real)) < N * N / 4


def test_the_instrument_sees_a_matrix() -> None:
    x = torch.randn(100, 4)
    with Largest() as found:
        (x @ x.mT).exp().sum()
    assert found.entries == 100 * 100
