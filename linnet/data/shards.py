"""The tokens of a large corpus on disk: shards of about 32 MiB of text, made by several processes and never in memory.

A split is a folder of the cache, whose name is the SHA-256 of what is read and of the tokenizer. It holds a file of ids
for each shard (`token_file.py`), the tokenizer, and `shards.json`, which lists the shards when all are there. Each file
gets its name when it is complete, so what a killed process has finished is kept.
"""

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.data.packing import count_text_words
from linnet.data.sharded_corpus import Piece, ShardedCorpus, cut_sharded_corpus
from linnet.data.sources import FEWEST_BYTES
from linnet.data.token_file import map_token_file, read_token_file, write_token_header, write_token_ids
from linnet.data.tokenizer import Tokenizer
from linnet.data.workers import count_worker_cores, work_in_workers
from linnet.errors import InputError
from linnet.storage import (
    DAY,
    BusyError,
    RunLock,
    clean_temporary_files,
    one_line_file_errors,
    read_json_file,
    temporary_file_name,
    write_json_file,
)

FORMAT = "linnet-shards-1"
SIZE = 32 << 20  # bytes of text in a shard
MOST_OPEN = 64  # files mapped at a time
WAIT = 0.2  # seconds between two looks at whether another process has finished
TOKENIZER, LIST = "tokenizer.json", "shards.json"


@dataclass(frozen=True)
class Shard:
    """One file of ids: where it is, what its header must say, and what is read for it."""

    path: Path
    key: str
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """Bytes of text, on the average of its files."""
        return sum(piece.bytes for piece in self.pieces)

    def read(self) -> dict[str, Any] | None:
        """Verify the finished file and return its header; None if the file is missing or damaged."""
        found = read_token_file(self.path, self.key)
        return None if found is None else found[1]

    def write(self) -> int:
        """Tokenize this shard; returns roughly the number of bytes of text."""
        tokenizer = _load_tokenizer(self.path.parent / TOKENIZER)
        words = size = 0

        def arrays() -> Iterator[NDArray[Any]]:
            nonlocal words, size
            for piece in self.pieces:
                for text, ended in piece.read():
                    yield from tokenizer.encode_part(text)
                    if ended:
                        yield tokenizer.encode_end(text)
                    words += count_text_words(text, text if ended else None)
                    size += len(text.encode())

        temporary = temporary_file_name(self.path)
        with one_line_file_errors("write", self.path, temporary):
            with temporary.open("x+b") as file:
                fields = write_token_ids(file, arrays(), tokenizer.dtype)
                write_token_header(file, {**fields, "words": words, "bytes": size, "key": self.key})
                os.fsync(file.fileno())
            temporary.replace(self.path)
        return self.bytes


@lru_cache(maxsize=1)
def _load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(path)


class ShardTokens:
    """The ids of many shards, read like one array of them; at most a few files are mapped at a time."""

    def __init__(self, shards: list[tuple[Path, dict[str, Any]]]) -> None:
        self._shards = shards
        self._starts = np.cumsum([0, *(fields["count"] for _, fields in shards)])
        self._open: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self.dtype = np.dtype(shards[0][1]["dtype"])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        flat = positions.ravel()
        which = np.searchsorted(self._starts, flat, "right") - 1
        found = np.empty(flat.shape, self.dtype)
        for number in np.flatnonzero(np.bincount(which)).tolist():
            here = which == number
            found[here] = self._map(number)[flat[here] - self._starts[number]]
        return found.reshape(positions.shape)

    def _map(self, number: int) -> NDArray[Any]:
        """The ids of one shard."""
        if number in self._open:
            self._open.move_to_end(number)
        else:
            path, fields = self._shards[number]
            with one_line_file_errors("read", path):
                self._open[number] = map_token_file(path, fields)
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        return self._open[number]


@dataclass(frozen=True)
class ShardedSplit:
    """The finished shards of a split of one corpus, and how many of them were damaged and made again."""

    shards: list[tuple[Path, dict[str, Any]]]
    mended: int

    def sum(self, field: str) -> int:
        """The sum of a field of the headers: `count`, `words` or `bytes`."""
        return sum(int(fields[field]) for _, fields in self.shards)


def open_shards(
    corpus: ShardedCorpus,
    tokenizer: Tokenizer,
    split: str,
    cache: Path,
    work: Callable[[str], Callable[[int, int], None]],
    workers: int | None = None,
) -> ShardedSplit:
    """The shards of a split, from the cache or tokenized now by `workers` processes (default: one per core)."""
    folder = shard_folder(corpus, tokenizer, split, cache)
    shards = _plan(folder, corpus.splits[split])
    if not shards:
        raise InputError(f"the {split} split of {corpus.name} is empty: give more text")
    there = sum(shard.path.exists() for shard in shards)
    found = _verify(shards, work(f"verifying the {split} shards of {corpus.name}")) if there else {}
    mended = there - len(found)
    if len(found) < len(shards) or not (folder / LIST).exists():
        with one_line_file_errors("write", folder):
            folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder, work(f"waiting for a process that tokenizes {corpus.name}")):
            found |= _verify([shard for shard in shards if shard.path not in found], lambda done, total: None)
            missing = [shard for shard in shards if shard.path not in found]
            if missing:
                _make(missing, tokenizer, work(f"tokenizing the {split} text of {corpus.name}"), workers)
                found |= _verify(missing, lambda done, total: None)
            _write_list(folder, split, tokenizer, [(shard, found[shard.path]) for shard in shards])
    return ShardedSplit([(shard.path, found[shard.path]) for shard in shards], mended)


def shard_folder(corpus: ShardedCorpus, tokenizer: Tokenizer, split: str, cache: Path) -> Path:
    """Where the shards of a split are, or would be."""
    name = f"{FORMAT} {SIZE} {corpus.sha256[split]} {tokenizer.sha256}"
    return cache / f"shards-{hashlib.sha256(name.encode()).hexdigest()}"


def listed_shard_tokens(folder: Path) -> int | None:
    """How many tokens a finished folder lists; None if it is not finished. Nothing is verified."""
    if not (folder / LIST).exists():
        return None
    content = read_json_file(folder / LIST)
    return sum(int(shard["count"]) for shard in content["shards"])


def _plan(folder: Path, pieces: tuple[Piece, ...]) -> list[Shard]:
    """The shards of these pieces, in order."""
    groups = enumerate(cut_sharded_corpus(pieces, SIZE))
    return [Shard(folder / f"{i:06}.tokens", f"{folder.name}/{i:06}", group) for i, group in groups]


def _verify(shards: list[Shard], progress: Callable[[int, int], None]) -> dict[Path, dict[str, Any]]:
    """The headers of the shards that are intact, by path; reads all of every file."""
    found = {}
    with ThreadPoolExecutor(min(count_worker_cores(), 8)) as pool:  # hashing releases the interpreter lock
        for done, (shard, fields) in enumerate(zip(shards, pool.map(Shard.read, shards), strict=True), 1):
            if fields is not None:
                found[shard.path] = fields
            progress(done, len(shards))
    return found


def _make(shards: list[Shard], tokenizer: Tokenizer, progress: Callable[[int, int], None], workers: int | None) -> None:
    """Tokenize these shards of one folder."""
    folder = shards[0].path.parent
    clean_temporary_files(folder, older_than=DAY)
    tokenizer.save(folder / TOKENIZER)
    done, total = 0, sum(shard.bytes for shard in shards)
    progress(done, total)
    workers = workers or (count_worker_cores() if total >= FEWEST_BYTES else 1)
    for size in work_in_workers(Shard.write, shards, workers):
        done += size
        progress(done, total)


def _write_list(folder: Path, split: str, tokenizer: Tokenizer, shards: list[tuple[Shard, dict[str, Any]]]) -> None:
    """Write the list of the folder's shards, once all are there."""
    rows = [{"file": shard.path.name, "size": shard.path.stat().st_size, **fields} for shard, fields in shards]
    about = {"format": FORMAT, "split": split, "tokenizer": tokenizer.sha256, "shards": rows}
    write_json_file(folder / LIST, about)


@contextmanager
def _alone(folder: Path, waiting: Callable[[int, int], None]) -> Iterator[None]:
    """Context that waits for the lock of the folder and holds it."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(RunLock(folder))
                break
            except BusyError:
                waiting(0, 1)
                time.sleep(WAIT)
        yield


def tokens_per_byte_of_shards(corpus: ShardedCorpus, tokenizer: Tokenizer, split: str, size: int) -> float:
    """Tokens per byte of text, estimated from about `size` bytes of text."""
    tokens = read = 0
    for text in corpus.sample(split, size):
        tokens += sum(len(ids) for ids in tokenizer.encode_part(text))
        read += len(text.encode())
    return tokens / max(read, 1)
