"""Masking: its shares, its limits, and that it depends only on its key."""

import numpy as np
import pytest

from linnet.data.masking import mask_tokens

VOCABULARY, MASK, SPECIALS = 1000, 999, (0, 1, 2, 3, 999)


def sample(count=512, seed=0):
    return np.random.default_rng(seed).integers(4, 999, count)


def mask(ids, key=(0, 0, 0), rate=0.15):
    return mask_tokens(ids, key, MASK, VOCABULARY, SPECIALS, rate)


def test_shares_of_the_masked_the_random_and_the_kept():
    ids = sample()
    masked = randomised = kept = 0
    positions = np.zeros(512)
    for i in range(2000):
        inputs, targets = mask(ids, (0, 0, i))
        chosen = targets != -100
        assert 76 <= chosen.sum() <= 77  # 0.15 * 512 = 76.8
        assert (targets[chosen] == ids[chosen]).all()
        assert (inputs[~chosen] == ids[~chosen]).all()
        positions += chosen
        masked += (inputs[chosen] == MASK).sum()
        kept += (inputs[chosen] == ids[chosen]).sum()
        randomised += ((inputs != MASK) & (inputs != ids)).sum()
    total = masked + randomised + kept
    assert total / (2000 * 512) == pytest.approx(0.15, abs=2e-4)
    assert masked / total == pytest.approx(0.8, abs=4e-3)
    assert randomised / total == pytest.approx(0.1, abs=4e-3)
    assert kept / total == pytest.approx(0.1, abs=4e-3)
    assert abs(positions - 300).max() < 5 * (2000 * 0.15 * 0.85) ** 0.5  # no place is preferred


def test_random_tokens_are_all_but_the_special_ones_equally_often():
    ids = np.full(4096, 8)
    specials = (0, 1, 5, 11)
    counts = np.zeros(12)
    for i in range(100):
        inputs, _ = mask_tokens(ids, (0, 0, i), 11, 12, specials, rate=1.0)
        counts += np.bincount(inputs, minlength=12)
    assert (counts[[0, 1, 5]] == 0).all()
    fair = 0.1 * 409_600 / 8
    others = counts[[2, 3, 4, 6, 7, 9, 10]]
    assert abs(others - fair).max() < 5 * fair**0.5
    assert counts[8] == pytest.approx(fair + 0.1 * 409_600, rel=0.02)


def test_special_tokens_are_never_chosen():
    ids = np.tile([0, 1, 2, 3, 999, 50], 100)
    inputs, targets = mask(ids, rate=1.0)
    assert ((targets != -100) == (ids == 50)).all()
    assert (inputs[ids != 50] == ids[ids != 50]).all()
    inputs, targets = mask(np.array([0, 1, 2, 3]))
    assert inputs.tolist() == [0, 1, 2, 3]
    assert (targets == -100).all()
    assert [part.size for part in mask(np.array([], np.int64))] == [0, 0]


def test_a_short_sample_has_something_to_guess():
    for i in range(100):
        assert (mask(np.array([7, 0]), (0, 0, i))[1] != -100).tolist() == [True, False]
    assert (mask(sample(), rate=0.0)[1] == -100).all()


def test_a_pure_function_of_its_key():
    ids = sample()
    before = ids.copy()
    first = mask(ids, (5, 3, 11))
    mask(ids, (5, 3, 12))
    again = mask(ids, (5, 3, 11))
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert np.array_equal(ids, before)
    assert first[0].dtype == first[1].dtype == np.int64
    keys = [(seed, epoch, i) for seed in (0, 1, -1) for epoch in (0, 1) for i in (0, 1, 2**40)]
    seen = {mask(ids, key)[1].tobytes() for key in keys}
    assert len(seen) == len(keys)


def test_the_masks_stay_the_same_from_version_to_version():
    inputs, targets = mask(np.arange(10, 30), (1, 2, 3), rate=0.5)
    changed = {i: int(inputs[i]) for i in np.flatnonzero(inputs != np.arange(10, 30)).tolist()}
    assert changed == {0: 999, 2: 999, 3: 999, 5: 999, 6: 999, 9: 999, 10: 999, 16: 999, 18: 999}
    assert np.flatnonzero(targets != -100).tolist() == [0, 2, 3, 5, 6, 9, 10, 16, 17, 18]


def test_token_ids_of_a_stream_are_taken_as_they_are():
    ids = sample(64).astype(np.uint16)
    assert np.array_equal(mask(ids)[0], mask(ids.astype(np.int64))[0])
