"""Readers of labeled texts: columns, labels, quotes, and files that are refused with their row."""

import numpy as np
import pytest

from linnet.data.labeled_texts import read_labeled_texts, split_labeled_texts
from linnet.errors import InputError


def write(tmp_path, text, name="a.tsv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_columns_by_name_and_by_number(tmp_path):
    path = write(tmp_path, b'\xef\xbb\xbftext\tlabel\tother\n "one \tyes\tx\r\ntwo\tno\ty\n\n')
    found = read_labeled_texts(path, ["text"], "label", ["no", "yes"])
    assert (found.first, found.second, found.labels.tolist()) == (['"one', "two"], None, [1, 0])
    path = write(tmp_path, "x\t1\t\tfirst\ny\t0\t\tsecond\n")
    found = read_labeled_texts(path, [3], 1, ["0", "1"])
    assert (found.first, found.labels.tolist()) == (["first", "second"], [1, 0])


def test_pairs_scores_and_quoted_cells(tmp_path):
    path = write(tmp_path, 'a\tb\tscore\n"say ""x"" now"\tsecond\t2.5\n')
    found = read_labeled_texts(path, ["a", "b"], "score", (), quoted=True)
    assert (found.first, found.second, found.labels.tolist()) == (['say "x" now'], ["second"], [2.5])


@pytest.mark.parametrize(
    "text,words",
    [
        (b"", "is empty"),
        (b"text\tlabel\n", "has no rows"),
        (b"words\tlabel\none\tyes\n", "no column is named 'text': its header has 'words', 'label'"),
        (b"text\tlabel\none\n", "row 2: it has 1 columns, not 2"),
        (b"text\tlabel\none\tyes\textra\n", "row 2: it has 3 columns, not 2"),
        (b"text\tlabel\none\tmaybe\n", "row 2: the label is 'maybe': it must be one of no, yes"),
        (b"text\tlabel\n  \tyes\n", "row 2: the text in column 1 is empty"),
        (b"text\tlabel\none\tyes\n\xff\tno\n", "row 3: the file is not UTF-8 text"),
    ],
)
def test_bad_files_are_refused_with_their_row(tmp_path, text, words):
    with pytest.raises(InputError) as error:
        read_labeled_texts(write(tmp_path, text), ["text"], "label", ["no", "yes"])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("score", ["", "nan", "inf", "five"])
def test_bad_scores_are_refused(tmp_path, score):
    with pytest.raises(InputError, match=r"row 2: the score is .*: it must be a number"):
        read_labeled_texts(write(tmp_path, f"text\tscore\none\t{score}\n"), ["text"], "score", ())


def test_splits_depend_on_the_seed_and_share_nothing(tmp_path):
    rows = "".join(f"text {i}\tyes\n" for i in range(50))
    texts = read_labeled_texts(write(tmp_path, f"text\tlabel\n{rows}"), ["text"], "label", ["yes"])
    one, again, other = (split_labeled_texts(texts, seed, (0.1, 0.2)) for seed in (0, 0, 1))
    assert [len(part) for part in one] == [35, 5, 10]
    assert sorted(text for part in one for text in part.first) == sorted(texts.first)
    assert [part.first for part in one] == [part.first for part in again]
    assert one[1].first != other[1].first
    with pytest.raises(InputError, match="has 2 rows: too few to hold any out"):
        split_labeled_texts(texts.select_texts([0, 1]), 0, (0.1, 0.1))


def test_the_hash_sees_texts_and_labels(tmp_path):
    texts = read_labeled_texts(write(tmp_path, "text\tscore\nab\t1\nc\t2\n"), ["text"], "score", ())
    moved = type(texts)(["a", "bc"], None, texts.labels, texts.rows)
    other = type(texts)(texts.first, None, np.array([1.0, 3.0]), texts.rows)
    assert len({texts.texts_sha256(), moved.texts_sha256(), other.texts_sha256()}) == 3


def test_a_quoted_cell_without_end_names_its_row(tmp_path):
    path = write(tmp_path, 'text\tlabel\none\tyes\n"' + "x" * 200_000)
    with pytest.raises(InputError) as error:
        read_labeled_texts(path, ["text"], "label", ["yes"], quoted=True)
    assert str(error.value) == f"{path}, row 3: field larger than field limit (131072)"
