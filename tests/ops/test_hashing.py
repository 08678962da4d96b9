"""Draws are uniform, depend only on seed and coordinates, and do not overflow at the ends of their range."""

import torch

from linnet.ops.hashing import hash_below, hash_coordinates, hash_stays, new_hashing_seed


def test_uniform_and_independent_of_shape() -> None:
    seed = torch.tensor(12345)
    i, j = torch.arange(300)[:, None], torch.arange(400)
    h = hash_coordinates(seed, i, j)
    assert h.shape == (300, 400) and h.min() >= 0 and h.max() < 2**32
    assert torch.equal(h[7:9, 30:31], hash_coordinates(seed, i[7:9], j[30:31]))
    counts = torch.bincount(hash_below(h, 10).flatten(), minlength=10) / h.numel()
    assert len(counts) == 10 and (counts - 0.1).abs().max() < 0.005
    u = h.double() / 2**32
    for axis in (0, 1):  # neighbors know nothing of each other
        pairs = torch.stack([u.narrow(axis, 0, 299).flatten(), u.narrow(axis, 1, 299).flatten()])
        assert abs(torch.corrcoef(pairs)[0, 1]) < 0.02
    assert abs(torch.corrcoef(torch.stack([u[:, :300].flatten(), u[:, :300].T.flatten()]))[0, 1]) < 0.02


def test_seeds_and_large_coordinates() -> None:
    large = torch.tensor([0, 2**31 - 1])
    first, second = (hash_coordinates(torch.tensor(seed), large) for seed in (0, 1))
    assert not torch.equal(first, second) and (first >= 0).all() and (first < 2**32).all()
    assert 0 <= hash_below(torch.tensor(2**32 - 1), 2**31) < 2**31
    assert 0 <= new_hashing_seed() < 2**31 and new_hashing_seed() != new_hashing_seed()


def test_the_hash_decides_what_stays() -> None:
    """In 32 bits as in 64, for every size of p and signs of all kinds."""
    seed, x = torch.tensor(3), torch.arange(5000)
    h = hash_coordinates(seed, x[:50, None])
    for p in (1e-9, 0.1, 0.5 - 2**-32, 0.5, 0.5 + 2**-32, 0.9, 1 - 2**-32):
        assert hash_stays(h, x, p).equal(hash_coordinates(seed, x[:50, None], x) >= int(p * 2**32))
