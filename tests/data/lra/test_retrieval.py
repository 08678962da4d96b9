"""Readers of Retrieval: the public tables of pairs, the small set of citations, real data, and errors."""

import lzma
import tracemalloc

import numpy as np
import pytest

from linnet.data.lra import retrieval
from linnet.errors import InputError


@pytest.fixture
def tables(tmp_path):
    """The three public tables of pairs."""
    for name in retrieval.NAMES.values():
        (tmp_path / name).write_bytes(b"1.0\ta\tb\tpaper a\tpaper b\n0.0\ta\tc\tpaper a\tpaper c is long\n")
    return tmp_path


def test_pairs(tables):
    splits = retrieval.read_retrieval(tables, 7)
    pairs = splits["valid"]
    assert pairs.labels.tolist() == [1, 0]
    assert len(pairs.documents) == 3  # each kept once
    assert pairs.pairs.tolist() == [[0, 1], [0, 2]]
    ids, _ = pairs.documents.rows(pairs.pairs[1])
    assert bytes((ids - 1).astype(np.uint8).ravel()) == b"paper apaper c"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"1.0\ta\tb\tpaper\n", "line 3: it has 4 columns, not 5"),
        (b"0.5\ta\tb\tx\ty\n", "line 3: the label is '0.5'"),
        (b"2\ta\tb\tx\ty\n", "line 3: the label is 2: it must be 0 to 1"),
        (b"1\ta\tb\tx\t\n", "line 3: a text is empty"),
        (b"1\ta\tb\tx\t\x80\n", "line 3: the byte 0x80 is not UTF-8 text"),
    ],
)
def test_errors_in_pairs_are_one_line(tables, row, message):
    path = tables / "new_aan_pairs.eval.tsv"
    path.write_bytes(path.read_bytes() + row)
    with pytest.raises(InputError, match=message):
        retrieval.read_retrieval(tables, 100)


def test_only_the_first_bytes_of_a_paper_are_stored(tables):
    """The public table has 147,086 pairs of whole papers."""
    path = tables / "new_aan_pairs.train.tsv"
    path.write_bytes(b"".join(b"%d\ta\tb\t%d %s\t%s\n" % (i % 2, i, b"x" * 50_000, b"y" * 50_000) for i in range(80)))
    tracemalloc.start()
    try:
        assert len(retrieval.read_retrieval(tables, 100)["train"]) == 80
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 8
    finally:
        tracemalloc.stop()


def test_missing_pairs_say_what_to_get(tmp_path):
    with pytest.raises(InputError, match=r"new_aan_pairs.train.tsv does not exist: .*lra_release.gz"):
        retrieval.read_retrieval(tmp_path, 100)


@pytest.fixture
def citations(tmp_path):
    """Two hundred papers, each citing the next ones; one without text."""
    docs = "".join(f"P{i}\t{'' if i == 9 else f'paper {i}'}\n" for i in range(200))
    (tmp_path / "docs.tsv.xz").write_bytes(lzma.compress(docs.encode()))
    cites = "".join(f"P{i}\tP{(i + d) % 200}\n" for i in range(200) for d in (1, 2, 3, 4))
    (tmp_path / "citations.tsv").write_text(cites)
    return tmp_path


def words(pairs: retrieval.Pairs) -> list[tuple[int, int]]:
    """The numbers of the papers of each pair."""
    ids, real = pairs.documents.rows(pairs.pairs.ravel())
    names = [bytes((row[mask] - 1).astype(np.uint8)) for row, mask in zip(ids, real, strict=True)]
    numbers = [int(name.removeprefix(b"paper ")) for name in names]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_no_paper_is_in_two_splits_and_labels_are_citations(citations):
    splits = retrieval.read_small_retrieval(citations, 100)
    seen: dict[int, str] = {}
    for split, pairs in splits.items():
        assert pairs.labels.mean() == 0.5
        for (a, b), label in zip(words(pairs), pairs.labels, strict=True):
            assert seen.setdefault(a, split) == seen.setdefault(b, split) == split
            cites, cited = (b - a) % 200 in (1, 2, 3, 4), (a - b) % 200 in (1, 2, 3, 4)
            assert cites if label else not cites and not cited and a != b
    assert 9 not in seen
    assert words(retrieval.read_small_retrieval(citations, 100)["train"]) == words(splits["train"])
    assert words(retrieval.read_small_retrieval(citations, 100, seed=1)["train"]) != words(splits["train"])


def test_the_second_paper_alone_does_not_tell_the_label(citations):
    """Some papers are cited often and most never, so negatives are drawn in proportion to citations."""
    cites = [(i, j) for i in range(200) for j in range(0, 200, 10) if (i * j + i + j) % 3 == 0]
    (citations / "citations.tsv").write_text("".join(f"P{i}\tP{j}\n" for i, j in cites))
    pairs = retrieval.read_small_retrieval(citations, 100)["train"]
    found = words(pairs)
    assert len(set(found)) == len(found)
    assert all(a != b for a, b in found)
    cited = {b for (_, b), label in zip(found, pairs.labels, strict=True) if label}
    assert cited == {b for (_, b), label in zip(found, pairs.labels, strict=True) if not label}


def test_errors_in_citations_are_one_line(citations):
    (citations / "citations.tsv").write_text("P1\tQ2\n")
    with pytest.raises(InputError, match=r"citations.tsv, line 1: 'Q2' is not an id in docs.tsv.xz"):
        retrieval.read_small_retrieval(citations, 100)
    (citations / "citations.tsv").write_text("P1\tP2\n")
    with pytest.raises(InputError, match=rf"{citations}: no two papers of the \w+ split cite each other"):
        retrieval.read_small_retrieval(citations, 100)
    (citations / "citations.tsv").unlink()
    with pytest.raises(InputError, match=r"citations.tsv does not exist: .* https://.* set data.path"):
        retrieval.read_small_retrieval(citations, 100)
    (citations / "docs.tsv.xz").write_bytes(lzma.compress(b"P1\tx\nP1\ty\n"))
    with pytest.raises(InputError, match=r"docs.tsv.xz, line 2: the id 'P1' occurs twice"):
        retrieval.read_small_retrieval(citations, 100)


def test_the_real_citations(data_dir):
    data_dir("aan-small")
    pairs = retrieval.read_small_retrieval(retrieval.default_retrieval_path(), 4000)
    assert [len(p) for p in pairs.values()] == [2212, 224, 190]
