"""Sources: which files of a folder are read, what is remembered of them, and where they are cut."""

import json
import os
from pathlib import Path

import pytest

from linnet.data import sources
from linnet.data.sources import Place, cut_source_for_shard, cut_source_held_out, find_source_files, scan_sources
from linnet.errors import InputError, LinnetError

ROOT = Path(__file__).parents[2]


def place(path, kind=None, field="text", skip_bad=False):
    return Place("data.path", str(path), kind, field, skip_bad)


def scan(path, cache, **options):
    return scan_sources(place(path, **options), cache, lambda done, total: None)


def refused(path, cache, **options):
    with pytest.raises(InputError) as error:
        scan(path, cache, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def folder(tmp_path):
    for name in ("b.txt", "a.md", ".hidden.txt", "c.png"):
        (tmp_path / "text" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "text" / name).write_text(f"{name}\n")
    return tmp_path / "text"


def test_a_folder_of_one_kind_is_read_in_order_of_names(folder):
    kind, files, passed = find_source_files(place(folder))
    assert (kind, [file.name for file in files]) == ("text", ["a.md", "b.txt"])
    assert passed == [(str(folder / "c.png"), ".png is not read as text")]


def test_a_folder_of_several_kinds_must_be_told_apart(folder):
    (folder / "d.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(InputError) as error:
        find_source_files(place(folder))
    several = f"data.path: {folder} holds several kinds of files (jsonl: d.jsonl, text: a.md)"
    assert str(error.value) == f"{several}: data.kind must say which to read"
    kind, files, passed = find_source_files(place(folder, "jsonl"))
    assert (kind, [file.name for file in files], len(passed)) == ("jsonl", ["d.jsonl"], 3)
    assert len(find_source_files(place(folder, "text"))[1]) == 3  # JSON lines are text too
    assert "(such as .parquet" in refused(folder, folder, kind="parquet")


def test_a_file_is_of_the_kind_of_its_suffix(folder):
    (folder / "d.jsonl").write_text('{"text": "x"}\n')
    assert find_source_files(place(folder / "d.jsonl"))[0] == "jsonl"
    assert find_source_files(place(folder / "d.jsonl", "text"))[0] == "text"
    assert find_source_files(place(folder / "c.png"))[0] == "text"


def test_missing_and_empty_places_are_named(tmp_path):
    assert "does not exist: data.path must be a file of text" in refused(tmp_path / "absent", tmp_path)
    (tmp_path / "none").mkdir()
    assert "has no files to read" in refused(tmp_path / "none", tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in refused(tmp_path / "pipe", tmp_path)
    (tmp_path / "blank.txt").write_text(" \n")
    assert "is empty: there is no text to learn from" in refused(tmp_path / "blank.txt", tmp_path)


def test_bad_files_and_rows_are_refused_or_skipped(folder, tmp_path):
    (folder / "bad.txt").write_bytes(b"one\n\xff")
    (folder / "empty.txt").write_text("\n")
    assert refused(folder, tmp_path).endswith("it is not UTF-8 text: data.skip_bad=true skips such files")
    good, passed = scan(folder, tmp_path, skip_bad=True)
    assert [source.name for source in good] == ["a.md", "b.txt"]
    assert passed[1:] == [
        (str(folder / "bad.txt"), "line 2: the file holds the byte 0xff: it is not UTF-8 text"),
        (str(folder / "empty.txt"), "it is empty"),
    ]
    rows = folder / "d.jsonl"
    rows.write_text('{"text": "x"}\n{"body": "y"}\n[]\n')
    assert "line 2: it has no field 'text'" in refused(rows, tmp_path)
    assert refused(rows, tmp_path).endswith("data.skip_bad=true skips such rows")
    (source,), ((_, why),) = scan(rows, tmp_path, skip_bad=True)
    assert source.documents == 1
    assert why.startswith("2 rows, the first is line 2: it has no field 'text'")


def test_a_file_is_read_again_only_after_a_change(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "RECENT", 0)
    first, _ = scan(folder, tmp_path / "cache")
    seen = []
    once = sources.scan_source
    monkeypatch.setattr(sources, "scan_source", lambda job: seen.append(job[1]) or once(job))
    assert scan(folder, tmp_path / "cache")[0] == first
    assert seen == []
    (folder / "b.txt").write_text("x.txt\n")
    assert scan(folder, tmp_path / "cache")[0] != first
    assert seen == ["b.txt"]
    (record,) = (tmp_path / "cache").iterdir()
    record.write_text(record.read_text().replace('"documents": 1', '"documents": 2'))  # not what was written
    assert [source.documents for source in scan(folder, tmp_path / "cache")[0]] == [1, 1]
    assert seen == ["b.txt", "a.md", "b.txt"]


def test_a_file_that_changes_after_it_was_checked_is_refused(folder, tmp_path):
    (source,), _ = scan(folder / "b.txt", tmp_path)
    source.check_stamp()
    (folder / "b.txt").write_text("something else\n")
    with pytest.raises(LinnetError, match=r"b\.txt has changed while it was being read: start again"):
        source.check_stamp()


def test_text_is_cut_where_lines_or_words_end(tmp_path):
    path = tmp_path / "my.txt"
    data = "".join(f"größer {i}\nals  {i}\n\n" for i in range(200)).encode()
    path.write_bytes(data)
    (source,), _ = scan(path, tmp_path)
    for near in range(1, 120):
        held_out = cut_source_held_out(source, near)
        assert data[held_out - 1 : held_out] == b"\n"
        assert data.find(b"\n", near - 1) + 1 == held_out
        cut = cut_source_for_shard(source, near, len(data))
        assert near <= cut < near + 40
        data[:cut].decode()
    assert cut_source_for_shard(source, len(data) - 1, len(data)) is None
    path.write_text("ü€𝄞" * 1000)  # no line to end at: the end of a character
    (source,), _ = scan(path, tmp_path)
    for near in range(100, 120):
        path.read_bytes()[: cut_source_held_out(source, near)].decode()
        assert cut_source_for_shard(source, near, source.size) is None


def test_rows_are_never_cut(tmp_path):
    path = tmp_path / "my.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * 50 * i}) + "\n" for i in range(1, 20)))
    (source,), _ = scan(path, tmp_path)
    data = path.read_bytes()
    for near in range(1, len(data), 97):
        assert data[cut_source_held_out(source, near) - 1 :][:1] == b"\n"
        cut = cut_source_for_shard(source, near, len(data))
        assert cut is None or data[cut - 1 : cut] == b"\n"
