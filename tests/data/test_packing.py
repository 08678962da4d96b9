"""Packing: the cache is right or rebuilt, every token is a target once, and the order is a pure function."""

import errno
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from linnet.data import packing
from linnet.data.corpora import SPLITS, Corpus, Document, load_corpus
from linnet.data.packing import HEADER, Blocks, Stream, open_packed_stream, packed_batch_epochs, packed_batch_indices
from linnet.data.tokenizer import Tokenizer, build_tokenizer
from linnet.errors import InputError, LinnetError

DOCUMENTS = [Document("a", b"one two\nthree\n"), Document("b", "größer".encode())]
CORPUS = Corpus("text", {"train": DOCUMENTS, "valid": DOCUMENTS[:1], "test": []})
BYTES = Tokenizer("bytes")


def never(*_):
    raise AssertionError("tokenized again")


def stream_of(count):
    return Stream("train", np.arange(10, 10 + count, dtype=np.uint16), 0, 0)


@pytest.fixture
def no_tokenizing(monkeypatch):
    def forbid():
        monkeypatch.setattr(Tokenizer, "encode_document", never)

    return forbid


def test_a_stream_is_all_documents_one_after_the_other(tmp_path):
    stream = open_packed_stream(CORPUS, BYTES, "train", tmp_path)
    ids = [*BYTES.encode("one two\nthree\n"), BYTES.eos, *BYTES.encode("größer"), BYTES.eos]
    assert stream.tokens.tolist() == ids
    assert stream.tokens.dtype == np.uint16
    assert stream.bytes == 14 + 8
    assert stream.words == 3 + 2 + 1 + 1  # words, line ends, a word, the end of its line
    words = build_tokenizer("word", [document.text for document in DOCUMENTS])
    assert len(open_packed_stream(CORPUS, words, "train", tmp_path).tokens) == stream.words


def test_wikitext_2_has_its_published_token_counts(data_dir, tmp_path):
    corpus = load_corpus("wikitext", data_dir("wikitext-2"))
    tokenizer = build_tokenizer("word", (document.text for document in corpus.splits["train"]))
    for split, count in zip(SPLITS, (2_088_628, 217_646, 245_569), strict=True):
        stream = open_packed_stream(corpus, tokenizer, split, tmp_path)
        assert len(stream.tokens) == stream.words == count
        assert stream.bytes == corpus.size(split)


def test_the_second_time_the_cache_answers(tmp_path, no_tokenizing):
    calls = []
    first = open_packed_stream(CORPUS, BYTES, "train", tmp_path, progress=lambda *done: calls.append(done))
    assert calls == [(14, 22), (22, 22)]
    no_tokenizing()
    second = open_packed_stream(CORPUS, BYTES, "train", tmp_path)
    assert isinstance(second.tokens, np.memmap)
    assert np.array_equal(first.tokens, second.tokens)
    assert (first.words, first.bytes) == (second.words, second.bytes)
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ValueError, match="read-only"):
        second.tokens[0] = 1


def test_a_long_document_is_told_in_parts(tmp_path):
    data, calls = b"one two\n" * 50_000, []
    corpus = Corpus("text", {"train": [Document("a", data), Document("b", b"three")]})
    open_packed_stream(corpus, BYTES, "train", tmp_path, progress=lambda *done: calls.append(done))
    assert len(calls) > 5 and calls == sorted(set(calls)) and {total for _, total in calls} == {len(data) + 5}
    assert calls[-2:] == [(len(data), len(data) + 5), (len(data) + 5, len(data) + 5)]


def test_other_content_other_tokenizer_other_split_other_file(tmp_path):
    open_packed_stream(CORPUS, BYTES, "train", tmp_path)
    open_packed_stream(CORPUS, BYTES, "valid", tmp_path)
    open_packed_stream(CORPUS, Tokenizer("bytes", mask=False), "train", tmp_path)
    changed = Corpus("text", {"train": [Document("a", b"one two\nthreE\n"), DOCUMENTS[1]]})
    open_packed_stream(changed, BYTES, "train", tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_large_vocabulary_gets_wider_ids(tmp_path):
    words = [f"w{i}" for i in range(70_000)]
    tokenizer = Tokenizer("word", words)
    corpus = Corpus("text", {"train": [Document("a", b"w69999 w0")]})
    stream = open_packed_stream(corpus, tokenizer, "train", tmp_path)
    assert stream.tokens.dtype == np.uint32
    assert stream.tokens.tolist() == [70_003, 4, 2]


def test_a_damaged_cache_is_rebuilt(tmp_path):
    right = open_packed_stream(CORPUS, BYTES, "train", tmp_path)
    (path,) = tmp_path.iterdir()
    good, rng = path.read_bytes(), random.Random(0)
    for _ in range(300):
        damaged = bytearray(good)
        damaged[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        stream = open_packed_stream(CORPUS, BYTES, "train", tmp_path)
        assert np.array_equal(stream.tokens, right.tokens)
        assert (stream.words, stream.bytes) == (right.words, right.bytes)
        assert path.read_bytes() == good
    for length in (0, 1, HEADER - 1, HEADER, len(good) - 1):
        path.write_bytes(good[:length])
        open_packed_stream(CORPUS, BYTES, "train", tmp_path)
        assert path.read_bytes() == good
    path.write_bytes(good + b"x")
    open_packed_stream(CORPUS, BYTES, "train", tmp_path)
    assert path.read_bytes() == good


def test_a_cache_of_another_key_is_not_believed(tmp_path):
    open_packed_stream(CORPUS, BYTES, "valid", tmp_path)
    (other,) = tmp_path.iterdir()
    open_packed_stream(CORPUS, BYTES, "train", tmp_path)
    (path,) = set(tmp_path.iterdir()) - {other}
    good = path.read_bytes()
    path.write_bytes(other.read_bytes())
    open_packed_stream(CORPUS, BYTES, "train", tmp_path)
    assert path.read_bytes() == good


def test_kills_and_rivals_leave_an_intact_cache(tmp_path):
    corpus = Corpus("text", {"train": [Document(str(i), b"some text\n" * 500) for i in range(40)]})
    right = open_packed_stream(corpus, BYTES, "train", tmp_path / "right").tokens
    folder, rng = tmp_path / "cache", random.Random(0)
    for _ in range(8):
        pids = []
        for _ in range(3):
            pids.append(os.fork())
            if pids[-1] == 0:
                try:
                    signal.alarm(60)
                    while True:
                        for path in folder.glob("*.tokens"):
                            path.unlink(missing_ok=True)
                        open_packed_stream(corpus, BYTES, "train", folder)
                finally:
                    os._exit(1)
        time.sleep(rng.uniform(0.01, 0.08))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])  # none had failed before
        for path in folder.glob("*.tokens"):
            assert packing._read(path, path.stem, "train") is not None
        assert np.array_equal(open_packed_stream(corpus, BYTES, "train", folder).tokens, right)
    left = [path for path in folder.iterdir() if path.suffix == ".tmp"]
    for path in left:
        os.utime(path, (0, 0))
    for path in folder.glob("*.tokens"):
        path.unlink()
    open_packed_stream(corpus, BYTES, "train", folder)  # the next writer removes what is over a day old
    assert [path.suffix for path in folder.iterdir()] == [".tokens"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(packing, "_tokenize", full)
    with pytest.raises(LinnetError) as error:
        open_packed_stream(CORPUS, BYTES, "train", tmp_path)
    assert str(error.value).startswith(f"cannot write {tmp_path}")
    assert str(error.value).endswith(".tokens: No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_may_not_be_written_is_done_without(tmp_path, monkeypatch):
    def forbidden(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", forbidden)
        stream = open_packed_stream(CORPUS, BYTES, "train", tmp_path / "cache")
    assert stream.tokens.tolist() == open_packed_stream(CORPUS, BYTES, "train", tmp_path / "cache").tokens.tolist()
    (tmp_path / "file").touch()
    with pytest.raises(LinnetError, match=r"cannot write .*file"):
        open_packed_stream(CORPUS, BYTES, "train", tmp_path / "file")


def test_the_default_cache_is_in_the_home_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    open_packed_stream(CORPUS, BYTES, "train")
    assert len(list((tmp_path / ".cache" / "linnet").iterdir())) == 1


def test_an_empty_split(tmp_path):
    with pytest.raises(InputError, match="the test split is empty"):
        open_packed_stream(CORPUS, BYTES, "test", tmp_path)


@pytest.mark.parametrize("count", [7, 8, 9, 12, 13])
def test_every_token_is_a_target_once_and_follows_the_one_before_it(count):
    stream = stream_of(count)
    blocks = Blocks(stream, 4, whole=True)
    assert len(blocks) == -(-count // 4)
    inputs, targets = blocks.causal(np.arange(len(blocks)))
    assert inputs.dtype == targets.dtype == np.int64
    assert inputs.shape == targets.shape == (len(blocks), 4)
    real = targets != -100
    assert targets[real].tolist() == stream.tokens.tolist()
    assert inputs[real].tolist() == [Tokenizer.eos, *stream.tokens.tolist()[:-1]]
    assert (inputs[~real] == Tokenizer.pad).all()
    tokens, key_mask = blocks.tokens(np.arange(len(blocks)))
    assert (key_mask == real).all()
    assert tokens[key_mask].tolist() == stream.tokens.tolist()
    assert (tokens[~key_mask] == Tokenizer.pad).all()


def test_training_sees_full_blocks_in_the_order_asked_for():
    blocks = Blocks(stream_of(15), 4)
    assert len(blocks) == 3
    tokens, key_mask = blocks.tokens(np.array([2, 0]))
    assert tokens.tolist() == [[18, 19, 20, 21], [10, 11, 12, 13]]
    assert key_mask.all()
    assert blocks.causal(np.array([2]))[0].tolist() == [[17, 18, 19, 20]]
    for wrong in ([3], [-1]):
        with pytest.raises(IndexError):
            blocks.tokens(np.array(wrong))


def test_a_text_too_short_for_a_block():
    with pytest.raises(InputError) as error:
        Blocks(stream_of(5), 8)
    said = "the train split has 5 tokens, too few for a block of data.context = 8: "
    assert str(error.value) == said + "give more text or a smaller context"
    assert len(Blocks(stream_of(5), 8, whole=True)) == 1
    with pytest.raises(InputError, match=r"data\.context is 0"):
        Blocks(stream_of(5), 0)


@pytest.mark.parametrize(("batch", "count"), [(4, 10), (3, 9), (7, 3), (1, 1), (5, 5)])
def test_each_epoch_takes_each_sample_once(batch, count):
    steps = range(6 * count)
    samples = np.concatenate([packed_batch_indices(3, 0, step, batch, count) for step in steps])
    epochs = np.concatenate([packed_batch_epochs(0, step, batch, count) for step in steps])
    for epoch in range(6 * batch):
        assert sorted(samples[epochs == epoch]) == list(range(count))


def test_the_order_is_a_pure_function_of_seed_epoch_and_step():
    def order(seed, epoch):
        return packed_batch_indices(seed, epoch, 0, 100, 100).tolist()

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1, -1, 2**63) for epoch in range(3)}) == 12
    assert (
        packed_batch_indices(7, 0, 5, 20, 100).tolist() == packed_batch_indices(7, 1, 0, 20, 100).tolist()
    )  # 5 * 20 = an epoch
    late = packed_batch_indices(0, 0, 10**9, 8, 1000)
    assert late.tolist() == packed_batch_indices(0, 8 * 10**6, 0, 8, 1000).tolist()
    packing._order.cache_clear()
    assert packed_batch_indices(0, 0, 10**9, 8, 1000).tolist() == late.tolist()
    for batch, count in ((0, 5), (5, 0)):
        with pytest.raises(InputError, match="at least 1"):
            packed_batch_indices(0, 0, 0, batch, count)


def test_the_order_stays_the_same_from_version_to_version():
    assert packed_batch_indices(0, 0, 0, 10, 10).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert packed_batch_indices(1, 2, 1, 4, 1000).tolist() == [518, 395, 724, 728]


def test_the_order_is_uniform():
    first = np.array([packed_batch_indices(0, epoch, 0, 1, 8)[0] for epoch in range(4000)])
    counts = np.bincount(first, minlength=8)
    assert abs(counts - 500).max() < 4 * (500 * 7 / 8) ** 0.5
