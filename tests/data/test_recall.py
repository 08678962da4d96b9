"""Recall: the content of a sample, its answers, and that it depends only on its key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.data.corpora import SPLITS
from linnet.data.masking import IGNORE
from linnet.data.recall import BLANK, draw_recall_sample

SMALL = {"context": 40, "vocab_size": 41, "pairs": (2, 5, 13)}


@st.composite
def sizes(draw) -> dict[str, object]:
    """All allowed sizes, up to the limits: no position and no key to spare."""
    pairs = sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=3)))
    context = draw(st.integers(max(3, 3 * pairs[-1]), 60))
    return {"context": context, "vocab_size": draw(st.integers(2 * pairs[-1] + 1, 60)), "pairs": pairs}


@given(data=sizes(), seed=st.integers(0, 2**63 - 1), split=st.sampled_from(SPLITS), sample=st.integers(0, 10**9))
def test_pairs_then_each_key_once_more_with_its_value_as_the_answer(data, seed, split, sample):
    ids, targets = draw_recall_sample((seed, split, sample), **data)
    asked = np.flatnonzero(targets != IGNORE)
    P = len(asked)
    keys, values = ids[: 2 * P : 2], ids[1 : 2 * P : 2]
    most = (data["vocab_size"] - 1) // 2
    assert P in data["pairs"]
    assert ids.shape == targets.shape == (data["context"],)
    assert len(set(keys)) == P
    assert keys.min() >= 1
    assert keys.max() <= most < values.min()
    assert values.max() < data["vocab_size"]
    assert asked.min() >= 2 * P
    assert sorted(ids[asked]) == sorted(keys)
    memory = dict(zip(keys, values, strict=True))
    assert [memory[key] for key in ids[asked]] == list(targets[asked])
    rest = np.setdiff1d(np.arange(2 * P, data["context"]), asked)
    assert (ids[rest] == BLANK).all()


def test_a_sample_is_a_function_of_seed_split_and_number():
    key = (3, "train", 17)
    first, again = draw_recall_sample(key, **SMALL), draw_recall_sample(key, **SMALL)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    for other in ((4, "train", 17), (3, "valid", 17), (3, "train", 18)):
        assert not np.array_equal(draw_recall_sample(other, **SMALL)[0], first[0])


def test_the_bits_stay_as_they_are():
    """Committed results are based on these samples: another generator needs another name."""
    ids, targets = draw_recall_sample((0, "test", 0), context=10, vocab_size=9, pairs=(2,))
    assert ids.tolist() == [3, 7, 2, 7, 3, 0, 0, 2, 0, 0]
    assert targets.tolist() == [-100, -100, -100, -100, 7, -100, -100, 7, -100, -100]


def test_no_sample_of_one_split_is_in_another():
    rows = {split: {draw_recall_sample((0, split, i), **SMALL)[0].tobytes() for i in range(1500)} for split in SPLITS}
    assert [len(found) for found in rows.values()] == [1500] * 3
    assert len(set.union(*rows.values())) == 4500


def test_numbers_of_pairs_keys_values_and_orders_are_drawn_evenly():
    samples = [draw_recall_sample((1, "train", i), **SMALL) for i in range(3000)]
    counts = np.array([(targets != IGNORE).sum() for _, targets in samples])
    assert [(counts == P).mean() for P in SMALL["pairs"]] == pytest.approx([1 / 3] * 3, abs=0.03)
    of_five = [(ids, targets) for ids, targets in samples if (targets != IGNORE).sum() == 5]
    keys = np.bincount(np.concatenate([ids[:10:2] for ids, _ in of_five]), minlength=21)[1:]
    values = np.bincount(np.concatenate([ids[1:10:2] for ids, _ in of_five]), minlength=41)[21:]
    for found in (keys, values):  # twenty of each
        assert found / found.sum() == pytest.approx(np.full(20, 1 / 20), abs=0.015)
    first_asked = [list(ids[:10:2]).index(ids[targets != IGNORE][0]) for ids, targets in of_five]
    assert np.bincount(first_asked, minlength=5) / len(of_five) == pytest.approx(np.full(5, 0.2), abs=0.06)


def test_early_places_are_asked_more_often():
    """With one query, position k after the pair is queried with probability proportional to 1/k."""
    data = {"context": 8, "vocab_size": 3, "pairs": (1,)}
    places = [int(np.flatnonzero(draw_recall_sample((0, "train", i), **data)[1] != IGNORE)[0]) - 2 for i in range(6000)]
    weights = 1 / np.arange(1, 7)
    assert np.bincount(places, minlength=6) / 6000 == pytest.approx(weights / weights.sum(), abs=0.02)
