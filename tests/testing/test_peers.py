"""Adapters to other libraries load late, seeded and quietly; those that are installed compute."""

import re
import tomllib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from linnet.testing.peers import INSTALL, PEERS, MissingPeerError, Peer, Seeded, join_peer_heads, split_peer_heads

ROOT = Path(__file__).parents[2]


class Loud(nn.Module):
    """Prints and warns when it is built, has random parameters, and draws more in each call."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        import warnings

        print("no CUDA here")
        warnings.warn("old", FutureWarning, stacklevel=1)
        self.value = nn.Linear(head_dim, head_dim)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        return self.value(v) + torch.randn(())


def test_the_extra_installs_exactly_the_peers():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {re.split(r"[<>=]", package)[0] for package in extras["peers"]}
    timed = {"FLASH-pytorch", "long-short-transformer", "transformers"}  # by `linnet bench peers` alone
    assert {peer.package for peer in PEERS if peer.install == INSTALL} == named - timed
    assert timed <= named


def test_rows_are_sorted_and_differ():
    rows = [(peer.name, not peer.causal) for peer in PEERS]
    assert rows == sorted(set(rows))


def test_heads_merge_and_split():
    q = torch.randn(2, 3, 5, 4)
    assert join_peer_heads(q).shape == (2, 5, 12)
    assert torch.equal(join_peer_heads(q)[0, 1], torch.cat([q[0, h, 1] for h in range(3)]))
    assert torch.equal(split_peer_heads(join_peer_heads(q), 3), q)


def test_an_absent_package_says_how_to_install_it():
    peer = Peer("nobody", "a-package-that-nobody-wrote", True, Loud)
    assert peer.version is None
    with pytest.raises(MissingPeerError, match=r"pip install 'linnet-attention\[peers\]'"):
        peer.load(2, 4)


def test_a_package_without_the_object_is_named():
    def build(heads: int, head_dim: int) -> nn.Module:
        from torch import FastAttention  # type: ignore[attr-defined]

        return FastAttention(heads)

    with pytest.raises(MissingPeerError, match=r"torch \d.* does not load: .*FastAttention"):
        Peer("torch", "torch", True, build).load(2, 4)


def test_loading_is_seeded_and_quiet(capfd):
    before = torch.get_rng_state()
    peer = Peer("loud", "torch", False, Loud, random=True)
    first, second = peer.load(2, 4), peer.load(2, 4)
    assert torch.equal(first.value.weight, second.value.weight)
    assert not first.training
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


def test_seeded_calls_repeat_and_leave_the_generator_alone():
    attention = Peer("loud", "torch", False, Loud, random=True).load(2, 4)
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    assert not torch.equal(attention(q, k, v), attention(q, k, v))
    before = torch.get_rng_state()
    assert torch.equal(Seeded(attention)(q, k, v), Seeded(attention)(q, k, v))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.name}-{'causal' if peer.causal else 'bidirectional'}")
def test_an_installed_peer_computes(peer):
    try:
        attention = peer.load(2, 8)
    except MissingPeerError as reason:
        pytest.skip(f"{peer.package} is measured where it is installed: {reason}")
    with torch.no_grad():
        big = peer.load(2, 8, tokens=128)(*torch.randn(3, 1, 2, 128, 8))  # with the sizes that a benchmark uses
    assert big.shape == (1, 2, 128, 8)
    q, k, v = torch.randn(3, 2, 2, 100, 8)
    copies = q.clone(), k.clone(), v.clone()
    with torch.no_grad():
        o = attention(q, k, v)
    assert o.shape == v.shape
    assert o.isfinite().all()
    assert all(torch.equal(x, copy) for x, copy in zip((q, k, v), copies, strict=True))
