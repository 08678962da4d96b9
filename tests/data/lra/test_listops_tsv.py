"""The public TSV form of ListOps: written, read back, and refused with file and line if wrong."""

import itertools
import os
import time

import numpy as np
import pytest

from linnet.data.lra import listops_tsv
from linnet.data.lra.listops import draw_listops_trees, generate_listops
from linnet.data.lra.listops_tsv import (
    HEADER,
    NAMES,
    listops_to_text,
    read_listops_tsv,
    score_listops_tsv_shortcuts,
    write_listops_tsv,
)
from linnet.errors import InputError, LinnetError
from linnet.storage import temporary_file_name

GOOD = "( ( ( [MAX 2 ) 9 ) ] )\t9"


@pytest.fixture
def written(tmp_path):
    write_listops_tsv(tmp_path / "new", {"train": 30, "valid": 3, "test": 2}, seed=5)
    return tmp_path / "new"


def test_files_hold_the_generated_trees_in_order(written):
    parts = [read_listops_tsv(written / name, 2000) for name in NAMES.values()]
    assert [len(part.values) for part in parts] == [30, 3, 2]
    (trees,) = generate_listops(5, 35)
    assert np.array_equal(np.concatenate([part.tokens for part in parts]), trees.tokens)
    assert np.array_equal(np.concatenate([part.values for part in parts]), trees.values)
    assert sorted(path.name for path in written.iterdir()) == sorted(NAMES.values())


def test_files_of_another_process_are_left_alone(tmp_path):
    other = temporary_file_name(tmp_path / NAMES["train"])
    other.write_text("half")
    write_listops_tsv(tmp_path, {"train": 1, "valid": 1, "test": 1}, seed=0)
    assert other.read_text() == "half"
    os.utime(other, (0, 0))  # long ago: whoever wrote it is gone
    for name in NAMES.values():
        (tmp_path / name).unlink()
    write_listops_tsv(tmp_path, {"train": 1, "valid": 1, "test": 1}, seed=0)
    assert not other.exists()


def test_files_are_on_the_disk_before_they_get_their_names(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append((os.fstat(number), list(tmp_path.glob("basic*")))))
    paths = write_listops_tsv(tmp_path, {"train": 3, "valid": 2, "test": 1}, seed=5)
    assert [(stat.st_ino, stat.st_size) for stat, _ in synced] == [(p.stat().st_ino, p.stat().st_size) for p in paths]
    assert not any(named for _, named in synced)


@pytest.mark.parametrize("after", [10, 33])
def test_what_is_stopped_leaves_nothing(tmp_path, monkeypatch, after):
    """In the middle of the first file, and after the second."""
    monkeypatch.setattr(listops_tsv, "generate_listops", lambda *args, **more: _stopped(after))
    with pytest.raises(KeyboardInterrupt):
        write_listops_tsv(tmp_path / "new", {"train": 30, "valid": 3, "test": 2}, seed=5)
    assert list((tmp_path / "new").iterdir()) == []


def _stopped(after):
    (trees,) = generate_listops(5, 35)
    yield trees.select(np.arange(after))
    raise KeyboardInterrupt


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LinnetError, match=r"cannot write .*file"):
        write_listops_tsv(tmp_path / "file", {"train": 1, "valid": 1, "test": 1}, seed=0)


def test_a_tree_is_nested_pairs():
    trees = draw_listops_trees(0, 0).select(np.arange(20))
    for text, (a, b) in zip(listops_to_text(trees.tokens, trees.starts), itertools.pairwise(trees.starts), strict=True):
        assert text.count("(") == text.count(")")
        assert len(text.replace("(", "").replace(")", "").split()) == b - a
        depth = np.cumsum([{"(": 1, ")": -1}.get(character, 0) for character in text])
        assert depth[:-1].min() == 1
        assert depth[-1] == 0


def test_the_example_of_the_public_form(tmp_path):
    nested = "( ( ( ( [SM ( ( ( [MAX 2 ) 9 ) ] ) ) 4 ) 1 ) ] )\t4"
    (tmp_path / "x.tsv").write_text(f"{HEADER}\n{GOOD}\n{nested}\n[MIN 3 4 ]\t3\n")
    trees = read_listops_tsv(tmp_path / "x.tsv", 2000)
    assert trees.values.tolist() == [9, 4, 3]
    assert listops_to_text(trees.tokens, trees.starts)[:2] == [GOOD.split("\t")[0], nested.split("\t")[0]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("( ( ( [MAX 2 ) 9 ) ] )\t8", "the target is 8, but the value of the tree is 9"),
        ("( ( ( [MAX 2 ) 9 ) ] )\t12", "the target is '12', not a digit"),
        ("( ( ( [MAX 2 ) 9 ) ] )", "it has 1 columns, not Source and Target"),
        ("( ( ( [MAX 2 ) 9 ) ] )\t9\t9", "it has 3 columns"),
        ("( ( ( [MAX 2 ) 12 ) ] )\t9", "'12' is not a symbol of ListOps"),
        ("( ( ( [AVG 2 ) 9 ) ] )\t9", "'[AVG' is not a symbol of ListOps"),
        ("( ( [MAX 2 ) 9 )\t9", "the brackets do not match"),
        ("[MAX ]\t9", "the brackets do not match, or an operator has no arguments"),
        ("( ( [MAX 2 ) 9 ) ] )\t9", "the parentheses do not match the brackets"),
        ("( ( ( [MAX ( 2 ) 9 ) ] )\t9", "the parentheses do not match the brackets"),
        ("\t9", "the tree is empty"),
        (f"[MAX {'7 ' * 20}]\t7", "the tree has 22 tokens, more than 21"),
        ("( ( ( [MAX 2 ) 9 ) ] )\xa0\t9", "the byte 0xc2 is not ASCII text"),
    ],
)
def test_a_wrong_row_is_one_line_with_its_place(tmp_path, line, message):
    path = tmp_path / "x.tsv"
    path.write_text(f"{HEADER}\n{GOOD}\n{line}\n{GOOD}\n")
    with pytest.raises(InputError) as error:
        read_listops_tsv(path, 21)
    assert str(error.value).startswith(f"{path}, line 3: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrong_header_and_an_empty_file(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text(f"{GOOD}\n")
    with pytest.raises(InputError, match="line 1: the header is not Source and Target"):
        read_listops_tsv(path, 2000)
    path.write_text(f"{HEADER}\n")
    with pytest.raises(InputError, match="has no rows"):
        read_listops_tsv(path, 2000)


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path):
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_listops_tsv(tmp_path / "new", {"train": 30, "valid": 3, "test": 2}, 0, stop)
    assert list((tmp_path / "new").iterdir()) == []


def test_scores_of_the_shortcut_by_outermost_operator(tmp_path):
    """In training MIN is 0 two times in three and MAX is always 9; 3 of 4 other trees agree, and 2 of them are 0."""
    rows = {
        "train": [("MIN", 0), ("MIN", 0), ("MIN", 1), ("MAX", 9)],
        "test": [("MIN", 0), ("MIN", 0), ("MAX", 9), ("MAX", 8)],
    }
    paths = {split: tmp_path / NAMES[split] for split in rows}
    for split, path in paths.items():
        lines = [f"( ( ( [{name} {value} ) [MED {value} ) ] )\t{value}" for name, value in rows[split]]
        path.write_text("\n".join([HEADER, *lines]) + "\n")
    found = score_listops_tsv_shortcuts(paths)
    loss = -(2 * np.log(3 / 13) + np.log(2 / 11) + np.log(1 / 11)) / 4  # a count more for each of ten values
    assert found == {"test": {"commonest": 0.5, "operator": 0.75, "loss": pytest.approx(loss)}}


def test_a_hundred_thousand_trees_take_less_than_two_minutes_of_two_cores(tmp_path):
    """That is 240 seconds of one core; this generates two of a hundred parts in half of their share."""
    begin = time.process_time()
    write_listops_tsv(tmp_path, {"train": 1800, "valid": 100, "test": 100}, seed=0)
    assert time.process_time() - begin < 2.4
