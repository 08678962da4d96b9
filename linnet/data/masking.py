"""Masking for masked language models: redrawn in each epoch, a pure function of (seed, epoch, sample)."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

IGNORE = -100  # the target of a position without a loss
TO_MASK, TO_RANDOM = 0.8, 0.1  # the rest keep their token


def mask_tokens(
    ids: NDArray[np.int64],
    rng_key: tuple[int, int, int],
    mask_id: int,
    vocab_size: int,
    special_ids: Iterable[int],
    rate: float = 0.15,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs and targets of one sample (N,): a share `rate` of its tokens are targets, the others have -100.

    Of these, 80 % become the mask, 10 % a random token and 10 % stay. Special tokens are never chosen and never
    inserted. The number of targets is rate * N, rounded up or down at random as in fairseq, and at least one.
    """
    seed, epoch, sample = rng_key
    specials = sorted({*special_ids, mask_id})
    inputs = np.array(ids, np.int64)
    targets = np.full_like(inputs, IGNORE)
    allowed = np.flatnonzero(~np.isin(inputs, specials))
    # The last word of the counter separates these bits from those that order the samples.
    bits = np.random.Philox(
        key=np.array([seed % 2**64, epoch], np.uint64), counter=np.array([0, 0, sample, 1], np.uint64)
    )
    u = (bits.random_raw(1 + 3 * inputs.size) >> np.uint64(11)) * 2.0**-53  # uniform in [0, 1)
    rank, fate, draw = u[1:].reshape(3, -1)
    count = min(max(int(rate * allowed.size + u[0]), int(rate > 0)), allowed.size)
    chosen = allowed[np.argsort(rank[allowed], kind="stable")[:count]]

    random_token = (draw[chosen] * (vocab_size - len(specials))).astype(np.int64)
    for special in specials:  # ascending: step over each
        random_token += random_token >= special
    targets[chosen] = inputs[chosen]
    cases = [fate[chosen] < TO_MASK, fate[chosen] < TO_MASK + TO_RANDOM]
    inputs[chosen] = np.select(cases, [np.int64(mask_id), random_token], inputs[chosen])
    return inputs, targets
