"""The texts of the encoders: one line per review or paper, marks of WikiText undone, written once."""

import lzma

import pytest

from linnet.errors import InputError, LinnetError
from linnet.screen import Screen
from linnet.studies.encoder_texts import collect_encoder_texts

QUIET = Screen(quiet=True)


@pytest.fixture
def sources(tmp_path, monkeypatch):
    for name in ("wikitext-2", "imdb", "aan-small"):
        (tmp_path / name).mkdir()
    (tmp_path / "wikitext-2/wiki.train.tokens").write_text(" a well @-@ known 1 @,@ 000 words \n")
    (tmp_path / "imdb/train.tsv.xz").write_bytes(lzma.compress(b"1\t7\tgood film\n0\t8\tbad film\n"))
    (tmp_path / "aan-small/docs.tsv.xz").write_bytes(lzma.compress("P1\tÜber words\n".encode()))
    monkeypatch.setenv("LINNET_DATA", str(tmp_path))
    return tmp_path


def test_texts_are_collected_once(sources, tmp_path):
    folder = collect_encoder_texts(tmp_path / "out", QUIET)
    assert (folder / "wikitext-2.txt").read_text() == " a well-known 1,000 words \n"
    assert (folder / "imdb.txt").read_text() == "good film\nbad film\n"
    assert (folder / "papers.txt").read_text() == "Über words\n"
    (sources / "imdb/train.tsv.xz").unlink()
    assert collect_encoder_texts(tmp_path / "out", QUIET) == folder


def test_a_missing_source_is_one_line(sources, tmp_path, monkeypatch):
    (sources / "aan-small/docs.tsv.xz").unlink()
    with pytest.raises(LinnetError, match=r"docs\.tsv\.xz"):
        collect_encoder_texts(tmp_path / "out", QUIET)
    monkeypatch.delenv("LINNET_DATA")
    with pytest.raises(InputError, match="LINNET_DATA is not set"):
        collect_encoder_texts(tmp_path / "other", QUIET)
