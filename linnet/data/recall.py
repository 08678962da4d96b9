"""Multi-query associative recall, generated: key-value pairs, then the keys again, each to be answered by its value.

A sample is a pure function of (seed, split, sample). It begins with its pairs, `key value key value ...`; no key occurs
twice. After the pairs each key appears once more, in another order and with gaps; the other positions are blank. The
task and the distribution of the gaps are those of "Zoology" (arXiv 2312.04927): the k-th position after the pairs has
weight 1/k.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.data.corpora import SPLITS
from linnet.data.masking import IGNORE

BLANK = 0  # followed by the ids of the keys, then by as many values or one more


def draw_recall_sample(
    rng_key: tuple[int, str, int], context: int, vocab_size: int, pairs: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs and targets (N,) of one sample, N = context. The target is the value of a queried key, -100 elsewhere.

    The number of pairs is drawn uniformly from `pairs`.
    """
    most, keys_in_all = max(pairs), (vocab_size - 1) // 2
    u = _uniform(rng_key, 1 + keys_in_all + 2 * most + context)
    of_count, of_key, of_value, of_order, of_place = np.split(u, np.cumsum([1, keys_in_all, most, most]))
    P = pairs[int(of_count[0] * len(pairs))]
    keys = 1 + np.argsort(of_key, kind="stable")[:P]
    values = 1 + keys_in_all + (of_value[:P] * (vocab_size - 1 - keys_in_all)).astype(np.int64)
    rest = context - 2 * P
    clocks = -np.log1p(-of_place[:rest]) * np.arange(1, rest + 1)  # exponential of rate 1/k: the P smallest win
    places = 2 * P + np.argsort(clocks, kind="stable")[:P]
    places = places[np.argsort(of_order[:P], kind="stable")]

    ids, targets = np.full(context, BLANK, np.int64), np.full(context, IGNORE, np.int64)
    ids[: 2 * P] = np.stack([keys, values], axis=1).ravel()
    ids[places], targets[places] = keys, values
    return ids, targets


def _uniform(rng_key: tuple[int, str, int], count: int) -> NDArray[np.floating[Any]]:
    """Numbers in [0, 1) from raw Philox bits, which numpy promises never to change."""
    seed, split, sample = rng_key
    # The last word of the counter separates these bits from those of orders and masks.
    counter = np.array([0, 0, sample, 2], np.uint64)
    bits = np.random.Philox(key=np.array([seed % 2**64, SPLITS.index(split)], np.uint64), counter=counter)
    return (bits.random_raw(count) >> np.uint64(11)) * 2.0**-53
