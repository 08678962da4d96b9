"""Pairs of linnet's mechanisms and other libraries': measured in turns, and skipped with a reason if absent."""

import json

import pytest
import torch
from torch import Tensor, nn

from linnet.bench.pairs import PAIRS, B, D, H, Pair, measure_bench_pairs
from linnet.testing.peers import MissingPeerError, Peer


class Module(nn.Module):
    """A module x -> y."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(heads * head_dim, heads * head_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


class Softmax(nn.Module):
    """A core o = f(q, k, v)."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(dim=-1) @ v


def test_both_kinds_are_measured_and_an_absent_one_is_reported() -> None:
    told: list[tuple[int, int]] = []
    pairs = [
        Pair("nystromformer", Peer("mine", "torch", False, Module), True, {"landmarks": 4}),
        Pair("performer", Peer("mine", "torch", True, Softmax), False, {"features": 8}),
        Pair("elu", Peer("nobody", "a-package-that-nobody-wrote", True, Softmax), False),
    ]
    found = measure_bench_pairs(pairs, tokens=16, rounds=2, progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert [(row["attention"], row["form"]) for row in found["rows"]] == [
        ("nystromformer", "bidirectional"),
        ("performer", "causal"),
    ]
    for row in found["rows"]:
        assert row["ours"] > 0 and row["theirs"] > 0 and row["version"] == torch.__version__
        assert row["speedup"] == pytest.approx(row["theirs"] / row["ours"], abs=0.01)
    assert [skip["attention"] for skip in found["skipped"]] == ["elu"]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.mechanism}-{pair.peer.causal}")
def test_an_installed_library_has_the_shapes_of_its_pair(pair: Pair) -> None:
    try:
        theirs = pair.peer.load(H, D)
    except MissingPeerError as reason:
        pytest.skip(f"{pair.peer.package} is measured where it is installed: {reason}")
    shape = (B, 16, H * D) if pair.whole else (B, H, 16, D)
    inputs = [torch.randn(shape) for _ in range(1 if pair.whole else 3)]
    assert theirs(*inputs).shape == shape
