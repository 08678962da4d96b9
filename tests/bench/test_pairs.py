"""Pairs of linnet's mechanisms and other libraries': measured in turns, and skipped with a reason if absent."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from linnet.bench.pairs import (
    PAIRS,
    PLAIN,
    D,
    H,
    Pair,
    bench_pair_inputs,
    bench_pair_ours,
    bench_pairs_page,
    measure_bench_pairs,
)
from linnet.testing.peers import MissingPeerError, Peer

N = 768  # BigBird's library takes no shorter row


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
        Pair("nystromformer", Peer("mine", "torch", False, Module), True, lambda n: {"landmarks": 4}),
        Pair("performer", Peer("mine", "torch", True, Softmax), False, lambda n: {"features": 8}),
        Pair("elu", Peer("nobody", "a-package-that-nobody-wrote", True, Softmax), False),
    ]
    found = measure_bench_pairs(pairs, lengths=[16], rounds=2, progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert [(row["attention"], row["form"]) for row in found["rows"]] == [
        ("nystromformer", "bidirectional"),
        ("performer", "causal"),
    ]
    for row in found["rows"]:
        assert row["ours"] > 0 and row["theirs"] > 0 and row["library"] == f"torch {torch.__version__}"
        assert row["speedup"] == pytest.approx(row["theirs"] / row["ours"], abs=0.01)
        assert 0 <= row["products"] < 1
    assert [skip["attention"] for skip in found["skipped"]] == ["elu"]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.mechanism}-{pair.peer.causal}")
def test_an_installed_library_has_the_shapes_of_its_pair(pair: Pair) -> None:
    try:
        theirs = pair.peer.load(H, D, N)
    except MissingPeerError as reason:
        pytest.skip(f"{pair.peer.package} is measured where it is installed: {reason}")
    inputs = bench_pair_inputs(pair, N)
    o = theirs(*inputs)
    assert o.shape == inputs[-1].shape
    torch.manual_seed(0)
    ours = bench_pair_ours(pair, N)
    assert ours(*inputs).shape == o.shape


def test_a_form_as_released_equals_the_mechanism_where_nothing_is_sampled() -> None:
    for pair in PAIRS:
        if pair.peer.name != PLAIN or pair.mechanism in ("informer", "cosformer", "lln", "lln_diag", "nystromformer"):
            continue  # a sample, positions from 1, other statistics, and another start of the inverse
        theirs = pair.peer.load(H, D, 256)
        ours = bench_pair_ours(pair, 256)
        ours.load_state_dict(getattr(theirs, "mixer", getattr(theirs, "core", None)).state_dict())
        inputs = bench_pair_inputs(pair, 256)
        with torch.no_grad():
            o, expected = ours(*inputs), theirs(*inputs)
        if pair.mechanism == "flash_quad" and pair.peer.causal:
            continue  # the released divisor is the length, which depends on the future
        assert float((o - expected).abs().max()) <= 1e-5 * float(expected.abs().max()), pair.mechanism


def test_the_committed_page_is_that_of_the_committed_numbers() -> None:
    folder = Path(__file__).parents[2] / "docs" / "benchmarks"
    found = json.loads((folder / "peers.json").read_text())
    assert (folder / "peers.md").read_text() == bench_pairs_page(found)
