"""Shards: the tokens of the corpus in memory, kept over kills, verified before use, made in flat memory."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from linnet.data import shards
from linnet.data.corpora import SPLITS, load_corpus
from linnet.data.packing import Blocks, Stream, open_packed_stream
from linnet.data.sharded_corpus import load_sharded_corpus
from linnet.data.shards import LIST, ShardTokens, listed_shard_tokens, open_shards, shard_folder
from linnet.data.sources import Place
from linnet.data.tokenizer import Tokenizer, build_tokenizer
from linnet.errors import InputError, LinnetError

BYTES = Tokenizer("bytes")


def quiet(what):
    return lambda done, total: None


def load(path, cache):
    return load_sharded_corpus("mine", Place("data.path", str(path), None, "text", False), "parts", {}, cache, quiet)


def opened(path, cache, tokenizer=BYTES, split="train", workers=1):
    return open_shards(load(path, cache), tokenizer, split, cache, quiet, workers)


def ids(split):
    tokens = ShardTokens(split.shards)
    return tokens[np.arange(len(tokens))].tolist()


@pytest.fixture
def small(monkeypatch):
    """Shards of a few kilobytes."""
    monkeypatch.setattr(shards, "SIZE", 20_000)


@pytest.mark.parametrize("kind", ["bpe", "word", "bytes"])
def test_the_tokens_are_those_of_the_corpus_in_memory(docs, tmp_path, small, kind):
    whole = load_corpus("text", docs, held_out="parts")
    texts = [document.text for document in whole.splits["train"]]
    tokenizer = BYTES if kind == "bytes" else build_tokenizer(kind, texts, 600)
    for split in SPLITS:
        stream = open_packed_stream(whole, tokenizer, split, tmp_path / "whole")
        found = opened(docs, tmp_path / "shards", tokenizer, split)
        assert ids(found) == stream.tokens.tolist()
        assert (found.sum("words"), found.sum("bytes")) == (stream.words, stream.bytes)
        tokens = ShardTokens(found.shards)
        theirs = Blocks(Stream(split, tokens, 0, 0), 32, whole=True)
        ours = Blocks(stream, 32, whole=True)
        chosen = np.random.default_rng(0).integers(0, len(ours), 50)
        assert len(ours) == len(theirs)
        assert all(np.array_equal(a, b) for a, b in zip(ours.causal(chosen), theirs.causal(chosen), strict=True))


def test_several_processes_make_the_same_shards(docs, tmp_path, small):
    one = opened(docs, tmp_path / "one")
    two = opened(docs, tmp_path / "two", workers=2)
    assert len(one.shards) > 3
    assert [path.read_bytes() for path, _ in one.shards] == [path.read_bytes() for path, _ in two.shards]
    assert two.mended == 0


def test_the_second_time_the_cache_answers_and_the_list_says_what_there_is(docs, tmp_path, small, monkeypatch):
    corpus = load(docs, tmp_path)
    folder = shard_folder(corpus, BYTES, "train", tmp_path)
    assert listed_shard_tokens(folder) is None
    first = opened(docs, tmp_path)
    monkeypatch.setattr(Tokenizer, "encode_part", lambda *_: pytest.fail("tokenized again"))
    assert ids(opened(docs, tmp_path)) == ids(first)
    assert listed_shard_tokens(folder) == first.sum("count")
    about = json.loads((folder / LIST).read_text())
    assert (about["split"], about["tokenizer"]) == ("train", BYTES.sha256)
    for row, (path, fields) in zip(about["shards"], first.shards, strict=True):
        assert row["size"] == path.stat().st_size == 512 + 2 * fields["count"]
    assert not list(folder.glob(".linnet-*"))


def test_damage_is_found_anywhere_and_only_that_shard_is_made_again(docs, tmp_path, small):
    first = opened(docs, tmp_path)
    right, rng = ids(first), np.random.default_rng(0)
    for turn in range(12):
        path, _ = first.shards[turn % len(first.shards)]
        others = {other: other.stat().st_mtime_ns for other, _ in first.shards if other != path}
        data = bytearray(path.read_bytes())
        if turn % 3:
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data if turn % 3 else data[: len(data) // 2])
        again = opened(docs, tmp_path)
        assert (ids(again), again.mended) == (right, 1)
        assert {other: other.stat().st_mtime_ns for other in others} == others


def test_shards_of_another_tokenizer_or_split_are_never_used(docs, tmp_path, small):
    other = build_tokenizer("bpe", [(docs / "math.md").read_text()] if (docs / "math.md").exists() else ["a b c"], 300)
    theirs, ours = opened(docs, tmp_path, other), opened(docs, tmp_path)
    right = ids(ours)
    for (source, _), (target, _) in zip(theirs.shards, ours.shards, strict=True):
        shutil.copy(source, target)
    again = opened(docs, tmp_path)
    assert (ids(again), again.mended) == (right, len(ours.shards))


MAKE = """
import sys
from pathlib import Path
from linnet.data import shards
from linnet.data.sharded_corpus import load_sharded_corpus
from linnet.data.sources import Place
from linnet.data.tokenizer import Tokenizer
if __name__ == "__main__":
    shards.SIZE = 20_000
    quiet = lambda what: lambda done, total: None
    place = Place("data.path", sys.argv[1], None, "text", False)
    corpus = load_sharded_corpus("mine", place, "parts", {}, Path(sys.argv[2]), quiet)
    shards.open_shards(corpus, Tokenizer("bytes"), "train", Path(sys.argv[2]), quiet, 1)
"""


def test_what_a_killed_process_has_finished_is_kept(docs, tmp_path, small):
    right = ids(opened(docs, tmp_path / "right"))
    folder = shard_folder(load(docs, tmp_path), BYTES, "train", tmp_path / "cache")
    kept = {}
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", MAKE, str(docs), str(tmp_path / "cache")])
        while process.poll() is None and len(list(folder.glob("0*.tokens"))) <= len(kept):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        there = {path: path.stat().st_mtime_ns for path in folder.glob("0*.tokens")}
        assert kept.items() <= there.items()  # nothing finished was written again
        assert len(there) > len(kept) or (folder / LIST).exists()
        kept = there
    found = opened(docs, tmp_path / "cache")
    assert (ids(found), found.mended) == (right, 0)
    assert not list(folder.glob(".linnet-*.tmp"))


def test_processes_that_start_together_share_the_work(docs, tmp_path, small):
    """As the ranks of one training do: one tokenizes, the others wait for it."""
    command = [sys.executable, "-c", MAKE, str(docs), str(tmp_path / "cache")]
    together = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in together] == [0, 0, 0]
    assert ids(opened(docs, tmp_path / "cache")) == ids(opened(docs, tmp_path / "right"))


def test_one_waits_for_another_that_holds_the_lock(docs, tmp_path, small):
    corpus = load(docs, tmp_path)
    folder = shard_folder(corpus, BYTES, "train", tmp_path)
    folder.mkdir()
    said = []
    with shards.RunLock(folder):
        waiting = threading.Thread(
            target=open_shards,
            args=(corpus, BYTES, "train", tmp_path, lambda what: lambda *_: said.append(what), 1),
        )
        waiting.start()
        while not any("waiting for a process that tokenizes mine" in what for what in said):
            time.sleep(0.01)
        assert not (folder / LIST).exists()
    waiting.join()
    assert (folder / LIST).exists()


def test_a_full_disk_is_one_line_and_keeps_what_is_finished(docs, tmp_path, small, monkeypatch):
    once, calls = shards.write_token_ids, []

    def full(*given):
        calls.append(1)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return once(*given)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_token_ids", full)
        with pytest.raises(LinnetError, match=r"^cannot write .*/000002\.tokens: No space left on device$"):
            opened(docs, tmp_path)
    folder = shard_folder(load(docs, tmp_path), BYTES, "train", tmp_path)
    assert sorted(path.name for path in folder.glob("*.tokens")) == ["000000.tokens", "000001.tokens"]
    assert not list(folder.glob(".linnet-*.tmp"))
    assert ids(opened(docs, tmp_path)) == ids(opened(docs, tmp_path / "right"))


def test_a_cache_that_cannot_be_written_and_an_empty_split(docs, tmp_path):
    (tmp_path / "file").touch()
    corpus = load(docs, tmp_path)
    with pytest.raises(LinnetError, match=r"^cannot write .*file/shards-"):
        open_shards(corpus, BYTES, "train", tmp_path / "file", quiet)
    (tmp_path / "my.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(InputError, match=r"the valid split of mine is empty: give more text"):
        opened(tmp_path / "my.jsonl", tmp_path, split="valid")


def test_few_files_are_open_at_a_time(docs, tmp_path, small, monkeypatch):
    monkeypatch.setattr(shards, "MOST_OPEN", 2)
    found = opened(docs, tmp_path)
    tokens = ShardTokens(found.shards)
    assert len(found.shards) > 4
    places = np.random.default_rng(0).integers(0, len(tokens), (20, 30))
    assert tokens[places].tolist() == np.array(ids(found))[places].tolist()
    assert len(tokens._open) == 2


# What one rank does before and during a training, without torch: check, tokenize, sample for a tokenizer, read batches.
FLAT = """
import resource, sys
from pathlib import Path
import numpy as np
from linnet.data import shards
from linnet.data.mixture import draw_mixture_samples
from linnet.data.packing import Blocks, Stream
from linnet.data.sharded_corpus import load_sharded_corpus
from linnet.data.shards import ShardTokens, open_shards
from linnet.data.sources import Place
from linnet.data.tokenizer import Tokenizer

folder, limit = Path(sys.argv[1]), int(sys.argv[2])

def status(name):
    return 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

def use(name):
    quiet = lambda what: lambda done, total: None
    place = Place("data.path", str(folder / name), None, "text", False)
    corpus = load_sharded_corpus(name, place, "parts", {}, folder, quiet)
    split = open_shards(corpus, Tokenizer("bytes"), "train", folder, quiet, 1)
    blocks = Blocks(Stream("train", ShardTokens(split.shards), 0, 0), 512)
    for step in range(100):
        blocks.causal(draw_mixture_samples(0, np.arange(step * 32, step * 32 + 32), (10_000,), (len(blocks),))[1])
    return len(list(corpus.sample("train", 1 << 20))), split.sum("count")

size, shards.SIZE = shards.SIZE, 1 << 16
use("small.txt")  # what the program itself needs, with the threads that verify many shards
shards.SIZE = size
before = status("VmData")
resource.setrlimit(resource.RLIMIT_DATA, (before + limit, before + limit))
sample, tokens = use("large.txt")
print(sample, tokens, status("VmData") - before)
"""


def flat_memory(folder, limit, size):
    """Use a corpus of `size` bytes in a process that may take `limit` bytes more."""
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(path.read_bytes() for path in library)
    (folder / "small.txt").write_bytes(text[: 1 << 20])
    with (folder / "large.txt").open("wb") as file:
        while file.tell() < size:
            file.write(text)
    command = [sys.executable, "-c", FLAT, str(folder), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sample, tokens, taken = map(int, done.stdout.split())
    assert 10 <= sample <= 30
    assert tokens > 0.85 * size
    assert taken <= limit


def test_a_corpus_of_ten_times_the_memory_is_tokenized_and_read_in_flat_memory(tmp_path):
    """105 MB of text and its 190 MB of tokens with 10 MB of memory, a limit that the kernel enforces."""
    flat_memory(tmp_path, 10 << 20, 100 << 20)


@pytest.mark.slow
def test_a_corpus_of_a_hundred_times_the_memory_takes_no_more_of_it(tmp_path):
    flat_memory(tmp_path, 10 << 20, 1000 << 20)
