"""Sharded corpora: splits as in memory, every byte in one piece, and samples of bounded size."""

import json
from pathlib import Path

import pytest

from linnet.data.corpora import SPLITS, load_corpus
from linnet.data.sharded_corpus import cut_sharded_corpus, load_sharded_corpus
from linnet.data.sources import Place
from linnet.errors import InputError

ROOT = Path(__file__).parents[2]


def place(path, key="data.path"):
    return Place(key, str(path), None, "text", False)


def load(path, cache, held_out="auto", **own):
    others = {split: place(path, f"data.{split}_path") for split, path in own.items()}
    return load_sharded_corpus("mine", place(path), held_out, others, cache, lambda what: lambda done, total: None)


def texts(corpus, split):
    """The documents of a split."""
    found, parts = [], []
    for piece in corpus.splits[split]:
        for text, ended in piece.read():
            parts.append(text)
            if ended:
                found.append("".join(parts))
                parts.clear()
    assert not parts
    return found


@pytest.mark.parametrize(
    ("few", "held_out", "how"),
    [
        (True, "auto", "the end of every file"),
        (False, "auto", "whole files"),
        (False, "parts", "the end of every file"),
    ],
)
def test_the_splits_are_those_of_the_corpus_in_memory(tmp_path, docs, few, held_out, how):
    folder = docs if few else ROOT / "linnet"
    whole = load_corpus("text", folder, held_out=held_out)
    corpus = load(folder, tmp_path, held_out)
    assert corpus.held_out == whole.held_out == how
    for split in SPLITS:
        assert texts(corpus, split) == [document.text for document in whole.splits[split]]
        assert [piece.source.name for piece in corpus.splits[split]] == [d.name for d in whole.splits[split]]


def test_paths_of_their_own_for_validation_and_test(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n" * 100)
    both = load(tmp_path / "train.txt", tmp_path, valid=tmp_path / "valid.txt", test=tmp_path / "test.txt")
    assert [texts(both, split) for split in SPLITS] == [[f"{split}\n" * 100] for split in SPLITS]
    assert both.held_out == "nothing"
    one = load(tmp_path / "train.txt", tmp_path, valid=tmp_path / "valid.txt")
    assert [sum(map(len, texts(one, split))) for split in ("train", "test")] == [570, 30]
    with pytest.raises(InputError, match=r"^data\.valid_path: .*train\.txt is in data\.path too"):
        load(tmp_path / "train.txt", tmp_path, valid=tmp_path / "train.txt")


def test_of_json_whole_rows_are_held_out(tmp_path):
    rows = [{"text": f"row {i} " + "x" * (i % 90)} for i in range(300)]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    corpus = load(tmp_path / "my.jsonl", tmp_path)
    found = [texts(corpus, split) for split in SPLITS]
    assert [text for part in found for text in part] == [row["text"] for row in rows]
    assert [round(len(part) / 300, 1) for part in found[:1]] == [0.9]


def test_of_parquet_rows_are_held_out_and_row_groups_are_shards(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra data (pyarrow)")
    from pyarrow import parquet

    rows = [f"row {i} of the table" for i in range(200)]
    parquet.write_table(arrow.table({"text": rows}), tmp_path / "my.parquet", row_group_size=25)
    corpus = load(tmp_path / "my.parquet", tmp_path)
    assert [texts(corpus, split) for split in SPLITS] == [rows[:180], rows[180:190], rows[190:]]
    shards = cut_sharded_corpus(corpus.splits["train"], 600)
    assert len(shards) > 3
    assert [text for shard in shards for piece in shard for text, _ in piece.read()] == rows[:180]


@pytest.mark.parametrize("size", [100, 5_000, 1 << 30])
def test_shards_hold_each_byte_once_and_in_order(tmp_path, docs, size):
    corpus = load(docs, tmp_path, "parts")
    pieces = corpus.splits["train"]
    shards = cut_sharded_corpus(pieces, size)
    assert len(shards) == 1 if size > 1 << 20 else len(shards) > 10
    parts = [part for shard in shards for part in shard]
    joined = []
    for part in parts:
        if joined and joined[-1][0] == part.source.name and joined[-1][2] == part.start and not joined[-1][3]:
            joined[-1] = (part.source.name, joined[-1][1], part.stop, part.ends)
        else:
            joined.append((part.source.name, part.start, part.stop, part.ends))
    assert joined == [(piece.source.name, piece.start, piece.stop, piece.ends) for piece in pieces]


def test_a_sample_is_bounded_and_from_everywhere_and_of_a_small_corpus_all(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text("".join(f"line {i} of many\n" for i in range(200_000)))
    corpus = load(path, tmp_path)
    sample = list(corpus.sample("train", 256 << 10))
    assert (256 << 10) * 0.9 < sum(map(len, sample)) < (256 << 10) * 1.2
    numbers = [int(part.split("\n")[1].split()[1]) for part in sample]
    assert numbers == sorted(numbers)
    assert numbers[-1] > 130_000 > 50_000 > numbers[0]
    assert "".join(corpus.sample("valid", 1 << 20)) == "".join(texts(corpus, "valid"))


def test_the_hash_is_of_what_is_read(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text("the same words\n" * 50)
    first, second = (load(tmp_path / name, tmp_path).sha256 for name in "ab")
    assert first == second
    (tmp_path / "b" / "b.txt").write_text("the same words\n" * 51)
    assert load(tmp_path / "b", tmp_path).sha256["train"] != first["train"]
