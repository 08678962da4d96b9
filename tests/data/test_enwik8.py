"""enwik8: its splits, and one line for a file that is missing, damaged or another one."""

import hashlib
import lzma

import pytest

from linnet.data import enwik8
from linnet.data.corpora import load_corpus
from linnet.errors import InputError


@pytest.fixture
def small(monkeypatch):
    """A file of 100 bytes in the place of enwik8."""
    data = bytes(range(28, 128))
    monkeypatch.setattr(enwik8, "SIZE", 100)
    monkeypatch.setattr(enwik8, "MD5", hashlib.md5(data).hexdigest())
    monkeypatch.setattr(enwik8, "ENDS", {"train": 90, "valid": 95, "test": 100})
    return data


@pytest.mark.parametrize("name", ["enwik8", "enwik8.xz"])
def test_the_splits_are_in_the_order_of_the_file(small, tmp_path, name):
    (tmp_path / name).write_bytes(lzma.compress(small) if name.endswith("xz") else small)
    splits = load_corpus("enwik8", tmp_path).splits
    assert [len(splits[split][0].data) for split in ("train", "valid", "test")] == [90, 5, 5]
    assert b"".join(splits[split][0].data for split in ("train", "valid", "test")) == small


def test_what_is_not_enwik8_is_one_line(small, tmp_path):
    with pytest.raises(InputError, match=r"enwik8 is missing: data.path must be a folder of enwik8"):
        load_corpus("enwik8", tmp_path)
    (tmp_path / "enwik8.xz").write_bytes(lzma.compress(small)[:-20])
    with pytest.raises(InputError, match=r"cannot read .*enwik8.xz"):
        load_corpus("enwik8", tmp_path)
    (tmp_path / "enwik8.xz").write_bytes(lzma.compress(bytes(10**6)))
    with pytest.raises(InputError, match=r"has 101 bytes with the MD5 .*: that of enwik8 is"):
        load_corpus("enwik8", tmp_path)


def test_it_needs_a_place(monkeypatch):
    monkeypatch.delenv("LINNET_DATA", raising=False)
    with pytest.raises(InputError, match="or set LINNET_DATA"):
        load_corpus("enwik8")
