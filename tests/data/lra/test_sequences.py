"""Sequences in one array: padded rows, splits and checks; and a cache that rejects changed files."""

import os

import numpy as np
import pytest

from linnet.data.lra.sequences import (
    Sequences,
    cached_sequences,
    load_sequence_arrays,
    save_sequence_arrays,
    sequence_arrays_sha256,
)
from linnet.errors import InputError
from linnet.storage import temporary_file_name

ROWS = [b"abc", b"\xff", b"de", b"\0\0"]


@pytest.fixture
def sequences() -> Sequences:
    return Sequences.of(ROWS, [0, 1, 1, 0])


def test_rows_are_padded_with_zero_to_the_longest_of_them(sequences):
    ids, real = sequences.rows(np.array([2, 0, 3]))
    assert ids.tolist() == [[101, 102, 0], [98, 99, 100], [1, 1, 0]]
    assert real.tolist() == [[True, True, False], [True] * 3, [True, True, False]]
    assert sequences.rows(np.array([1]))[0].tolist() == [[256]]
    assert (ids.dtype, real.dtype) == (np.int64, np.bool_)


def test_rows_for_a_model_have_one_of_few_widths():
    """Each width costs memory permanently: with trees of 1,500 lengths a run took eight times what it needs."""
    sequences = Sequences.of([b"a" * n for n in range(1, 101)], [0] * 100)
    widths = [sequences.rows(np.array([i]), most=90)[0].shape[1] for i in range(90)]
    assert [widths.index(width) for width in sorted(set(widths))] == [0, 32, 64]
    assert sorted(set(widths)) == [32, 64, 90]
    ids, real = sequences.rows(np.array([2]), most=90)
    assert (ids[0] == [98] * 3 + [0] * 29).all()
    assert real.sum() == 3


def test_splits_follow_each_other(sequences):
    parts = sequences.split(0.25)
    assert [len(part) for part in parts.values()] == [2, 1, 1]
    assert parts["valid"].rows(np.array([0]))[0].tolist() == [[101, 102]]
    assert parts["test"].labels.tolist() == [0]
    with pytest.raises(InputError, match=r"data\.count is 2"):
        Sequences.of(ROWS[:2], [0, 0]).split(0.1)


def test_checks(sequences):
    sequences.check("x", 2)
    with pytest.raises(InputError, match="x: the label of sequence 2 is 1: it must be 0 to 0"):
        sequences.check("x", 1)
    with pytest.raises(InputError, match="x: sequence 2 is empty"):
        Sequences.of([b"a", b""], [0, 0]).check("x", 2)
    with pytest.raises(InputError, match="x is empty"):
        Sequences.of([], []).check("x", 2)


def test_arrays_and_back(sequences):
    again = Sequences.from_arrays(sequences.arrays("p"), "p")
    assert sequence_arrays_sha256(again.arrays("p")) == sequence_arrays_sha256(sequences.arrays("p"))
    assert sequence_arrays_sha256(again.arrays("p")) != sequence_arrays_sha256(sequences.arrays("q"))


def test_a_cached_result_is_not_built_again(tmp_path, sequences):
    built = []

    def build():
        built.append(1)
        return sequences.arrays("p")

    first, second = (cached_sequences("about", build, tmp_path / "new") for _ in range(2))
    assert sequence_arrays_sha256(first) == sequence_arrays_sha256(second)
    assert built == [1]
    cached_sequences("about something else", build, tmp_path / "new")
    assert built == [1, 1]
    for path in (tmp_path / "new").iterdir():
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    assert sequence_arrays_sha256(cached_sequences("about", build, tmp_path / "new")) == sequence_arrays_sha256(first)
    assert built == [1, 1, 1]


def test_files_that_a_killed_process_left_in_the_cache_are_removed(tmp_path, sequences):
    fresh, old = (temporary_file_name(tmp_path / name) for name in ("a", "b"))
    for path in (fresh, old):
        path.write_bytes(b"a part of it")
    os.utime(old, (0, 0))
    cached_sequences("about", lambda: sequences.arrays("p"), tmp_path)
    assert (fresh.exists(), old.exists()) == (True, False)


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path, sequences):
    (tmp_path / "file").write_text("")
    assert sequence_arrays_sha256(
        cached_sequences("about", lambda: sequences.arrays("p"), tmp_path / "file" / "x")
    ) == sequence_arrays_sha256(sequences.arrays("p"))


def test_the_same_arrays_are_the_same_bytes(tmp_path, sequences):
    path, found = tmp_path / "x", set()
    for _ in range(20):
        save_sequence_arrays(path, "about ü", sequences.arrays("p"))
        found.add(path.read_bytes())
    assert len(found) == 1
    assert sequence_arrays_sha256(load_sequence_arrays(path, "about ü") or {}) == sequence_arrays_sha256(
        sequences.arrays("p")
    )


def test_a_file_with_another_description_is_not_used(tmp_path, sequences):
    save_sequence_arrays(tmp_path / "x", "one", sequences.arrays("p"))
    assert load_sequence_arrays(tmp_path / "x", "other") is None
    assert load_sequence_arrays(tmp_path / "y", "one") is None
    assert sequence_arrays_sha256(load_sequence_arrays(tmp_path / "x", "one") or {}) == sequence_arrays_sha256(
        sequences.arrays("p")
    )
