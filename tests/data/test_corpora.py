"""Corpora: which files are read, how they are split, and the errors for unreadable ones."""

import os
import random

import pytest

from linnet.data.corpora import SPLITS, STDLIB, Corpus, Document, load_corpus, read_corpus_document
from linnet.errors import InputError


def whole(corpus):
    return b"".join(document.data for split in SPLITS for document in corpus.splits[split])


def refused(corpus, path=None):
    with pytest.raises(InputError) as error:
        load_corpus(corpus, path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_stdlib_is_real_code_in_three_splits_by_file():
    corpus = load_corpus("stdlib")
    sizes = {split: corpus.size(split) for split in SPLITS}
    total = sum(sizes.values())
    assert total > 3_000_000
    assert 0.8 < sizes["train"] / total < 0.95
    assert min(sizes["valid"], sizes["test"]) > 0.03 * total
    names = [document.name for split in SPLITS for document in corpus.splits[split]]
    assert len(set(names)) == len(names) == len(STDLIB.split()) - corpus.missing
    assert corpus.missing < 30
    assert any("def " in document.text for document in corpus.splits["train"])
    assert load_corpus("stdlib").sha256 == corpus.sha256


def test_stdlib_skips_and_counts_missing_modules(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert "no source files" in refused("stdlib")
    (tmp_path / "ast.py").write_text("x = 1\n")
    corpus = load_corpus("stdlib")
    assert whole(corpus) == b"x = 1\n"
    assert corpus.missing == len(STDLIB.split()) - 1


def test_wikitext(data_dir, monkeypatch):
    path = data_dir("wikitext-2")
    corpus = load_corpus("wikitext", path)
    sizes = [corpus.size(split) for split in SPLITS]
    assert sizes == [(path / f"wiki.{split}.tokens").stat().st_size for split in SPLITS]
    monkeypatch.setenv("LINNET_DATA", str(path.parent))
    assert load_corpus("wikitext").sha256 == corpus.sha256


def test_wikitext_names_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("LINNET_DATA", raising=False)
    assert "LINNET_DATA" in refused("wikitext")
    assert "wiki.train.tokens is missing" in refused("wikitext", tmp_path / "absent")
    for split in SPLITS:
        (tmp_path / f"wiki.{split}.raw").write_text(f"{split}\n")
    assert whole(load_corpus("wikitext", tmp_path)) == b"train\nvalid\ntest\n"
    (tmp_path / "wiki.valid.raw").write_text(" \n")
    assert "wiki.valid.raw is empty" in refused("wikitext", tmp_path)


def test_one_file_is_split_by_contiguous_lines(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text("".join(f"line {i} größer\n" for i in range(1000)))
    corpus = load_corpus("text", path)
    parts = [corpus.splits[split][0].text for split in SPLITS]
    assert "".join(parts) == path.read_text()
    assert all(part.endswith("\n") for part in parts)
    assert [round(len(part) / len(path.read_text()), 2) for part in parts] == [0.90, 0.05, 0.05]


def test_one_long_line_is_split_between_characters(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text("ü€𝄞" * 1000)
    corpus = load_corpus("text", path)
    assert "".join(corpus.splits[split][0].text for split in SPLITS) == path.read_text()
    assert corpus.size("valid") > 400


def test_a_folder_of_many_files_is_split_by_file(tmp_path):
    for i in range(200):
        (tmp_path / str(i % 7)).mkdir(exist_ok=True)
        (tmp_path / str(i % 7) / f"{i}.md").write_text(f"text {i}\n")
    corpus = load_corpus("text", tmp_path)
    before = {document.name: split for split in SPLITS for document in corpus.splits[split]}
    assert len(before) == 200
    assert all(corpus.splits[split] for split in SPLITS)
    (tmp_path / "new.txt").write_text("new\n")
    corpus = load_corpus("text", tmp_path)
    after = {document.name: split for split in SPLITS for document in corpus.splits[split]}
    assert before.items() <= after.items()  # a new file moves no other from one split to another


def test_a_file_name_that_is_not_utf8_is_as_good_as_any(tmp_path):
    for i in range(200):
        with open(os.fsencode(tmp_path) + f"/{i}-\xff.txt".encode("latin-1"), "w") as file:
            file.write(f"text {i}\n")
    corpus = load_corpus("text", tmp_path)
    assert sorted(whole(corpus).split()) == sorted(b" ".join(b"text %d" % i for i in range(200)).split())
    assert all(corpus.splits[split] for split in SPLITS)


def few_files(folder):
    for name in "abc":
        (folder / f"{name}.txt").write_text(f"{name}\n" * 1000)
    return folder


def test_of_few_files_a_part_of_each_is_held_out(tmp_path):
    corpus = load_corpus("text", few_files(tmp_path))
    for split, size in zip(SPLITS, (1800, 100, 100), strict=True):
        assert [(document.name[0], len(document.data)) for document in corpus.splits[split]] == [
            (name, size) for name in "abc"
        ]
    assert corpus.held_out == "the end of every file"
    assert load_corpus("text", tmp_path, held_out="parts").sha256 == corpus.sha256


def test_the_rule_of_version_0_1_still_gives_its_splits(tmp_path):
    corpus = load_corpus("text", few_files(tmp_path), held_out=None)
    assert whole(corpus) == b"a\n" * 1000 + b"b\n" * 1000 + b"c\n" * 1000
    assert [corpus.size(split) for split in SPLITS] == [5400, 300, 300]
    assert {document.name for split in SPLITS[1:] for document in corpus.splits[split]} == {"c.txt"}


def test_whole_files_are_held_out_of_many_or_on_request(tmp_path):
    with pytest.raises(InputError, match="too few files"):
        load_corpus("text", few_files(tmp_path), held_out="files")
    for i in range(60):
        (tmp_path / f"{i}.md").write_text(f"text {i}\n" * 100)
    asked = load_corpus("text", tmp_path, held_out="files")
    names = [document.name for split in SPLITS for document in asked.splits[split]]
    assert len(set(names)) == len(names) == 63
    assert asked.held_out == "whole files"


def test_paths_of_their_own_for_validation_and_test(tmp_path):
    text = few_files(tmp_path / "text") if (tmp_path / "text").mkdir() is None else None
    for name in ("valid", "test"):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n" * 50)
    both = load_corpus("text", text, valid_path=tmp_path / "valid.txt", test_path=tmp_path / "test.txt")
    assert both.size("train") == 6000
    assert [both.splits[split][0].text for split in ("valid", "test")] == ["valid\n" * 50, "test\n" * 50]
    one = load_corpus("text", text, valid_path=tmp_path / "valid.txt")
    assert [one.size(split) for split in SPLITS] == [5700, 300, 300]
    assert "data.valid_path must be" in refused_with(text, valid_path=tmp_path / "absent")


def refused_with(path, **options):
    with pytest.raises(InputError) as error:
        load_corpus("text", path, **options)
    return str(error.value)


def test_bad_files_are_named_and_can_be_skipped(tmp_path):
    few_files(tmp_path)
    (tmp_path / "bad.txt").write_bytes(b"one\n\xff")
    (tmp_path / "empty.md").write_text("\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert refused("text", tmp_path).endswith("it is not UTF-8 text: data.skip_bad=true skips such files")
    corpus = load_corpus("text", tmp_path, skip_bad=True)
    assert corpus.passed_over == (
        (str(tmp_path / "picture.png"), ".png is not a text suffix"),
        (str(tmp_path / "bad.txt"), "line 2: the file holds the byte 0xff: it is not UTF-8 text"),
        (str(tmp_path / "empty.md"), "it is empty"),
    )


def test_hidden_empty_and_other_files_of_a_folder_are_left_out(tmp_path):
    (tmp_path / ".git").mkdir()
    for name in (".git/a.txt", ".b.txt", "c.png"):
        (tmp_path / name).write_bytes(b"\xff")
    assert "has no text files" in refused("text", tmp_path)
    (tmp_path / "empty.txt").write_text("\n")
    assert "is empty" in refused("text", tmp_path)
    (tmp_path / "real.TXT").write_text("real\n" * 100)
    assert whole(load_corpus("text", tmp_path)) == b"real\n" * 100


def test_line_ends_and_byte_order_marks(tmp_path):
    path = tmp_path / "my.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert read_corpus_document(path, "x") == Document("x", b"one\ntwo\nthree\n")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"one\ntwo\nth\xffree\n", ", line 3: the file holds the byte 0xff: it is not UTF-8 text"),
        (b"one\r\ntwo\r\n\0", ", line 3: the file holds a NUL byte: it is binary, not text"),
        (b"\x89PNG\r\n\x1a\n\0\0", ", line 1: the file holds the byte 0x89: it is not UTF-8 text"),
        (b"one\n\0\n\xff", ", line 2: the file holds a NUL byte: it is binary, not text"),
        (b"cut short \xe2\x82", ", line 1: the file holds the byte 0xe2: it is not UTF-8 text"),
        (b"", " is empty: there is no text to learn from"),
        (b" \n\t\n", " is empty: there is no text to learn from"),
    ],
)
def test_a_file_that_is_not_text_is_reported_with_its_line(tmp_path, data, said):
    path = tmp_path / "my.txt"
    path.write_bytes(data)
    assert refused("text", path) == f"{path}{said}"


def test_damage_anywhere_is_found_in_its_line(tmp_path):
    path, rng = tmp_path / "my.txt", random.Random(0)
    lines = ["word" * rng.randrange(5) for _ in range(100)]
    for _ in range(200):
        data = bytearray("\n".join(lines).encode())
        where = rng.randrange(len(data))
        data[where] = rng.choice([0, 0x80, 0xC0, 0xFF])
        path.write_bytes(data)
        assert f", line {data.count(10, 0, where) + 1}: " in refused("text", path)


def test_bad_names_and_paths(tmp_path):
    assert "did you mean 'wikitext'?" in refused("wikitxt")
    assert "data.path is not set" in refused("text")
    assert "does not exist" in refused("text", tmp_path / "absent.txt")
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in refused("text", tmp_path / "pipe")


def test_the_hash_is_of_content_and_borders_alone():
    def hashed(*documents):
        return Corpus("text", {"train": [Document(name, data) for name, data in documents]}).sha256["train"]

    assert hashed(("a", b"one"), ("b", b"two")) == hashed(("c", b"one"), ("d", b"two"))
    assert hashed(("a", b"one"), ("b", b"two")) != hashed(("a", b"onet"), ("b", b"wo"))
    assert hashed(("a", b"one")) != hashed(("a", b"onf"))


def test_text_that_is_trained_on_is_not_validated_on(tmp_path):
    (tmp_path / "text").mkdir()
    for name in ("a.txt", "b.txt", "c.other"):
        (tmp_path / "text" / name).write_text("a line\n" * 40)
    for place in ("text/b.txt", "text"):
        with pytest.raises(InputError, match=r"^data.valid_path: .*\.txt is in data.path too"):
            load_corpus("text", tmp_path / "text", valid_path=tmp_path / place)
    with pytest.raises(InputError, match=r"^data.test_path: .*a.txt is in data.path too"):
        load_corpus("text", tmp_path / "text/a.txt", test_path=tmp_path / "text")
    load_corpus("text", tmp_path / "text", valid_path=tmp_path / "text/c.other")  # a folder's text has other suffixes
