"""Several large corpora mixed by weights: which block of which corpus each sample of a run is.

The answer is a function of the seed and of the number of the sample, computed for any samples at once in memory that
does not depend on the size of the corpora. So any number of processes can share a batch, and none needs a state.

Every 10,000 samples in a row hold the same number of each corpus, in an order of their own. Each corpus is read in
epochs, each of which is a permutation of its blocks.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from linnet.errors import InputError

PERIOD = 10_000  # samples
ROUNDS = 8
TURNS, KEYS = 1, 2  # which random numbers of a seed: those of the turns or those of a permutation

Ints = NDArray[np.int64]


def mixture_shares(weights: Mapping[str, float]) -> tuple[int, ...]:
    """How many of PERIOD samples each corpus has: in proportion to its weight, the rest to the largest remainders."""
    total = sum(weights.values())
    exact = np.array([weight / total * PERIOD for weight in weights.values()])
    shares = np.floor(exact).astype(np.int64)
    order = np.argsort(shares - exact, kind="stable")
    shares[order[: PERIOD - int(shares.sum())]] += 1
    for name, share in zip(weights, shares.tolist(), strict=True):
        if not share:
            raise InputError(
                f"data.mixture.{name}.weight is {weights[name]}: that is under one of {PERIOD:,} samples; raise it"
            )
    return tuple(shares.tolist())


def draw_mixture_samples(
    seed: int, numbers: Ints, shares: Sequence[int], counts: Sequence[int]
) -> tuple[Ints, Ints, Ints]:
    """For samples of these numbers: the corpus, the block of the corpus, and the epoch of the corpus.

    `counts` is the number of blocks of each corpus. Sample after sample, each corpus gives each of its blocks once in
    every epoch.
    """
    owner, rank = np.empty_like(numbers), np.empty_like(numbers)
    periods, places = np.divmod(numbers, PERIOD)
    for period in np.unique(periods):
        here = periods == period
        owners, ranks = _turns(seed, int(period), tuple(shares))
        owner[here], rank[here] = owners[places[here]], ranks[places[here]]
    turns = periods * np.asarray(shares, np.int64)[owner] + rank
    epochs, inside = np.divmod(turns, np.asarray(counts, np.int64)[owner])
    blocks = np.empty_like(numbers)
    for corpus, epoch in np.unique(np.stack([owner, epochs]), axis=1).T.tolist():
        here = (owner == corpus) & (epochs == epoch)
        blocks[here] = permute_mixture_places(inside[here], counts[corpus], _keys(seed, corpus, epoch))
    return owner, blocks, epochs


@lru_cache(maxsize=8)
def _turns(seed: int, period: int, shares: tuple[int, ...]) -> tuple[Ints, Ints]:
    """The corpus of each sample of a period, and how many samples of the period it has before."""
    order = np.argsort(_bits(seed, TURNS, period, 0, PERIOD), kind="stable")
    owners, ranks = np.empty(PERIOD, np.int64), np.empty(PERIOD, np.int64)
    owners[order] = np.repeat(np.arange(len(shares)), shares)
    for corpus, share in enumerate(shares):
        ranks[owners == corpus] = np.arange(share)
    return owners, ranks


@lru_cache(maxsize=256)
def _keys(seed: int, corpus: int, epoch: int) -> NDArray[np.uint64]:
    """The keys of the permutation of an epoch of a corpus."""
    return _bits(seed, KEYS, epoch, corpus, ROUNDS)


def _bits(seed: int, what: int, number: int, corpus: int, count: int) -> NDArray[np.uint64]:
    """Raw Philox bits: numpy promises that those never change."""
    key = np.array([seed % 2**64, what], np.uint64)
    counter = np.array([0, number, corpus, 0], np.uint64)
    return np.asarray(np.random.Philox(key=key, counter=counter).random_raw(count), np.uint64)


def permute_mixture_places(places: Ints, count: int, keys: NDArray[np.uint64]) -> Ints:
    """Where a permutation of 0..count-1, chosen by the keys, moves these places.

    A Feistel network permutes the numbers of an even number of bits, the fewest that hold `count`. A place that it
    moves out of 0..count-1 is moved again until it is inside.
    """
    half = np.uint64(max((count - 1).bit_length() + 1, 2) // 2)
    mask = (np.uint64(1) << half) - np.uint64(1)
    found = places.astype(np.uint64)
    todo = np.arange(len(places))
    while len(todo):
        left, right = found[todo] >> half, found[todo] & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        found[todo] = (left << half) | right
        todo = todo[found[todo] >= np.uint64(count)]
    return found.astype(np.int64)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Unrelated 64 bits for each number: two rounds of multiplication and shift."""
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(multiplier)
    return x ^ (x >> np.uint64(31))
