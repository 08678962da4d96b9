"""Texts of sources: cuts keep the tokens, windows do not show, and each fault is one line with its place."""

import json
import random
import sys
from pathlib import Path

import pytest

from linnet.data import source_texts
from linnet.data.corpora import read_corpus_document
from linnet.data.source_texts import CUT, read_source_texts, refuse_source_row
from linnet.data.tokenizer import Tokenizer, build_tokenizer
from linnet.errors import InputError

ROOT = Path(__file__).parents[2]
PIECES = ["a", "b1", "def", "(", "'s", " ", "  ", "\n", "\n\n", "\t", "\u00a0", "\u3000", ".", "9", "é", "\x0b", "\x1c"]


def read(path, kind="text", start=0, stop=None, field="text", bad=None):
    stop = path.stat().st_size if stop is None else stop
    return list(read_source_texts(str(path), kind, field, start, stop, bad or refuse_source_row(str(path))))


def refused(path, kind="text", **options):
    with pytest.raises(InputError) as error:
        read(path, kind, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", ["bpe", "word", "bytes"])
def test_a_cut_changes_no_token(kind):
    text, rng = (ROOT / "docs" / "math.md").read_text(), random.Random(0)
    tokenizer = Tokenizer("bytes") if kind == "bytes" else build_tokenizer(kind, [text], 600)
    cuts = 0
    for _ in range(500):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randrange(3, 30)))
        for match in CUT.finditer(text):
            end, cuts = match.end(), cuts + 1
            assert tokenizer.encode(text[:end]) + tokenizer.encode(text[end:]) == tokenizer.encode(text)
    assert cuts > 500


@pytest.mark.parametrize("window", [5, 17, 1 << 16])
def test_text_is_that_of_a_document_whatever_the_window(tmp_path, monkeypatch, window):
    monkeypatch.setattr(source_texts, "WINDOW", window)
    monkeypatch.setattr(source_texts, "PIECE", 7)
    path = tmp_path / "my.txt"
    path.write_bytes("\ufeffgrößer\r\nals €𝄞\rund\n\nnoch  mehr Wörter\r\n".encode() * 3)
    parts = read(path)
    assert "".join(text for text, _ in parts) == read_corpus_document(path, "x").text
    assert [ended for _, ended in parts] == [False] * (len(parts) - 1) + [True]
    assert len(parts) > 3


def test_text_without_a_place_to_cut_is_cut_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(source_texts, "WINDOW", 16)
    monkeypatch.setattr(source_texts, "LONGEST_LINE", 64)
    (tmp_path / "long.txt").write_text("x" * 1000)
    parts = read(tmp_path / "long.txt")
    assert "".join(text for text, _ in parts) == "x" * 1000
    assert max(len(text) for text, _ in parts) <= 80


@pytest.mark.parametrize("window", [3, 1 << 16])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"one\ntwo\nth\xffree\n", ", line 3: the file holds the byte 0xff: it is not UTF-8 text"),
        (b"one\r\ntwo\r\n\0", ", line 3: the file holds a NUL byte: it is binary, not text"),
        (b"one\rtwo\r\xff", ", line 3: the file holds the byte 0xff: it is not UTF-8 text"),
        (b"cut short \xe2\x82", ", line 1: the file holds the byte 0xe2: it is not UTF-8 text"),
    ],
)
def test_a_file_that_is_not_text_is_named_with_its_line(tmp_path, monkeypatch, window, data, said):
    monkeypatch.setattr(source_texts, "WINDOW", window)
    (tmp_path / "my.txt").write_bytes(data)
    assert refused(tmp_path / "my.txt") == f"{tmp_path / 'my.txt'}{said}"


def test_each_line_of_json_is_a_document(tmp_path):
    path = tmp_path / "my.jsonl"
    rows = [{"text": "one\r\ntwo"}, {"text": " \n"}, {"text": "drei €", "id": 3}]
    path.write_text("\ufeff" + "\n".join(json.dumps(row) for row in rows) + "\r\n\n")
    assert read(path, "jsonl") == [("one\ntwo", True), ("drei €", True)]
    second = path.read_bytes().index(b"\n") + 1
    assert read(path, "jsonl", start=second) == [("drei €", True)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"body": "x", "id": 1}', "it has no field 'text' (data.field); its fields are 'body', 'id'"),
        ("{}", "it has no field 'text' (data.field); its fields are none"),
        ('{"text": null}', "the field 'text' is null, not text"),
        ('{"text": 3}', "the field 'text' is 3, not text"),
        ('["text"]', "it is ['text'], not an object with the field 'text'"),
        ('{"text": "\\ud800"}', "the field 'text' holds half of a surrogate pair, which is not text"),
        ('{"text": "x"', "it is not JSON (Expecting ',' delimiter at character 13)"),
        ("[" * 100_000, "it is not JSON (maximum recursion depth"),
        ('{"text": "\udcff"}', "it holds the byte 0xff, which is not UTF-8 text"),
    ],
)
def test_a_bad_line_of_json_is_named_or_skipped(tmp_path, line, said):
    path = tmp_path / "my.jsonl"
    path.write_bytes(f'{{"text": "good"}}\n{line}\n{{"text": "good too"}}\n'.encode(errors="surrogateescape"))
    assert refused(path, "jsonl").startswith(f"{path}, line 2: {said}")
    passed = []
    texts = read(path, "jsonl", bad=lambda place, why: passed.append((place, why)))
    assert [text for text, _ in texts] == ["good", "good too"]
    assert len(passed) == 1
    assert passed[0][0] == "line 2"


def test_json_that_was_cut_short_is_named(tmp_path):
    (tmp_path / "my.jsonl").write_text('{"text": "one"}\n{"text": "tw')
    assert refused(tmp_path / "my.jsonl", "jsonl").endswith("and the file ends in it: it was cut short")


def test_a_line_of_json_has_a_longest_length(tmp_path, monkeypatch):
    monkeypatch.setattr(source_texts, "LONGEST_ROW", 100)
    (tmp_path / "my.jsonl").write_text(json.dumps({"text": "x" * 200}))
    assert "line 1: it has more than 100 bytes" in refused(tmp_path / "my.jsonl", "jsonl")


def table(path, **columns):
    arrow = pytest.importorskip("pyarrow", reason="needs the extra data (pyarrow)")
    from pyarrow import parquet

    parquet.write_table(arrow.table(columns), path, row_group_size=3)
    return path


def test_rows_of_parquet_are_documents(tmp_path):
    path = table(tmp_path / "my.parquet", id=list(range(8)), text=[f"row {i} é" for i in range(7)] + [" "])
    assert read(path, "parquet", stop=8) == [(f"row {i} é", True) for i in range(7)]
    for start, stop in ((0, 3), (2, 4), (3, 6), (5, 8)):
        rows = [f"row {i} é" for i in range(start, min(stop, 7))]
        assert [text for text, _ in read(path, "parquet", start=start, stop=stop)] == rows


def test_bad_parquet_is_named(tmp_path):
    path = table(tmp_path / "my.parquet", id=[1, 2], text=["one", None], raw=[b"\xff", b"x"])
    assert refused(path, "parquet", stop=2) == f"{path}, row 2: the field 'text' is null, not text"
    assert "has no column 'body' (data.field); its columns are 'id', 'text', 'raw'" in refused(
        path, "parquet", stop=2, field="body"
    )
    assert "the column 'id' is of the type int64, not text" in refused(path, "parquet", stop=2, field="id")
    good = path.read_bytes()
    path.write_bytes(good[:-20])
    assert "is not a Parquet file, or was cut short" in refused(path, "parquet", stop=2)
    rows = table(tmp_path / "rows.parquet", text=["words " * 50] * 9)
    damaged = bytearray(rows.read_bytes())
    damaged[4:60] = bytes(56)
    rows.write_bytes(damaged)
    assert refused(rows, "parquet", stop=9).startswith(f"{rows}, after row 0: it is damaged: ")


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "my.parquet").write_bytes(b"PAR1")
    said = refused(tmp_path / "my.parquet", "parquet")
    assert "Parquet files need pyarrow: pip install '.[data]'" in said
