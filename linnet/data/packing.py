"""A split as one stream of token ids on disk, cut into blocks whose order is a pure function of the step.

A stream is tokenized once and cached as `<key>.tokens` (`token_file.py`). The key is the SHA-256 of content, tokenizer
and split, so a stale file is never used.
"""

import errno
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from linnet.data.corpora import Corpus
from linnet.data.masking import IGNORE as IGNORE
from linnet.data.token_file import HEADER as HEADER
from linnet.data.token_file import map_token_file, read_token_file, write_token_header, write_token_ids
from linnet.data.tokenizer import PIECE, Tokenizer
from linnet.errors import InputError
from linnet.storage import DAY, cache_folder, clean_temporary_files, one_line_file_errors, temporary_file_name

FORMAT = "linnet-tokens-1"


@dataclass(frozen=True)
class Stream:
    """The ids of a split in a memory-mapped array, and the counts for perplexity per word or per byte.

    `words` follows WikiText's rule: white space separates words, and each end of line counts as one more.
    """

    split: str
    tokens: NDArray[Any]
    words: int
    bytes: int


def open_packed_stream(
    corpus: Corpus,
    tokenizer: Tokenizer,
    split: str,
    cache: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Stream:
    """The stream of a split, from the cache or tokenized now; calls `progress` with (bytes done, bytes in all).

    `cache` is a folder, by default ~/.cache/linnet. If it is not writable, a temporary file is used, which
    disappears with the process. Processes that do this at the same time each write a file, and the last one stays.
    """
    name = f"{FORMAT} {corpus.sha256[split]} {tokenizer.sha256} {split}"
    key = hashlib.sha256(name.encode()).hexdigest()
    path = (cache_folder() if cache is None else Path(cache)) / f"{key}.tokens"
    stream = _read(path, key, split)
    if stream is None:
        if not corpus.size(split):
            raise InputError(f"the {split} split is empty: give more text")
        temporary = temporary_file_name(path)
        with one_line_file_errors("write", path, temporary), _create(temporary) as file:
            fields = _tokenize(file, corpus, tokenizer, split, progress)
            write_token_header(file, {**fields, "key": key})
            stream = Stream(split, map_token_file(file, fields), fields["words"], fields["bytes"])
            if file.name == str(temporary):
                temporary.replace(path)
                clean_temporary_files(path.parent, older_than=DAY)
    return stream


class Blocks:
    """A stream cut into blocks of `context` tokens: block i holds the tokens from i * context on.

    The rest at the end is dropped, so training sees only full blocks. With `whole` it becomes one more block, filled
    up with padding, so evaluation counts every token once.
    """

    def __init__(self, stream: Stream, context: int, whole: bool = False) -> None:
        total = len(stream.tokens)
        if context < 1:
            raise InputError(f"data.context is {context}: it must be at least 1")
        if total < context and not whole:
            raise InputError(
                f"the {stream.split} split has {total} tokens, too few for a block of data.context = {context}:"
                " give more text or a smaller context"
            )
        self.context = context
        self._tokens = stream.tokens
        self._count = -(-total // context) if whole else total // context

    def __len__(self) -> int:
        return self._count

    def tokens(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The blocks at these indices and their key mask, both (B,N); False marks padding."""
        positions, real = self._positions(indices)
        return np.where(real, self._gather(positions), Tokenizer.pad), real

    def causal(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Inputs and targets (B,N): the targets are the blocks, and each input is the token before its target.

        The very first token follows an `</s>`, so each token of the stream is a target exactly once. Padding has
        the target -100.
        """
        positions, real = self._positions(indices)
        before = np.where(positions > 0, self._gather(positions - 1), Tokenizer.eos)
        return np.where(real, before, Tokenizer.pad), np.where(real, self._gather(positions), IGNORE)

    def _positions(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The positions of the blocks' tokens in the stream, and which of them exist."""
        indices = np.asarray(indices, np.int64)
        if indices.size and not (indices.min() >= 0 and indices.max() < len(self)):
            raise IndexError(f"block {indices.min()} to {indices.max()} of {len(self)}")
        positions = indices[:, None] * self.context + np.arange(self.context)
        return positions, positions < len(self._tokens)

    def _gather(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._tokens[np.clip(positions, 0, len(self._tokens) - 1)].astype(np.int64)


def packed_batch_indices(seed: int, epoch: int, step: int, batch: int, count: int) -> NDArray[np.int64]:
    """The samples of a batch: every epoch is a permutation of 0..count-1, and batches follow without a gap.

    `step` counts batches from the start of `epoch`. A batch that reaches past the end of an epoch continues in the
    next one, so no sample is dropped and `packed_batch_indices(seed, 0, step, ...)` covers a whole training.
    """
    epochs = packed_batch_epochs(epoch, step, batch, count)
    places = (step * batch + np.arange(batch)) % count
    samples = np.empty(batch, np.int64)
    for e in np.unique(epochs):
        samples[epochs == e] = _order(seed, int(e), count)[places[epochs == e]]
    return samples


def packed_batch_epochs(epoch: int, step: int, batch: int, count: int) -> NDArray[np.int64]:
    """The epoch of each sample of `packed_batch_indices`, for draws that change in each epoch."""
    if batch < 1 or count < 1:
        raise InputError(f"batch is {batch} and the number of samples {count}: both must be at least 1")
    return np.asarray(epoch + (step * batch + np.arange(batch)) // count, np.int64)


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """The permutation of an epoch, from raw Philox bits: numpy promises that those never change."""
    bits = np.random.Philox(key=np.array([seed % 2**64, epoch], np.uint64))
    order = np.argsort(bits.random_raw(count), kind="stable")
    order.setflags(write=False)
    return order


def _tokenize(
    file: IO[bytes],
    corpus: Corpus,
    tokenizer: Tokenizer,
    split: str,
    progress: Callable[[int, int], None] | None,
) -> dict[str, Any]:
    """Write the ids of a split after the space for the header; returns the fields of the header."""
    words, done, total = 0, 0, corpus.size(split)

    def arrays() -> Iterator[NDArray[Any]]:
        nonlocal words, done
        for document in corpus.splits[split]:
            text = document.text
            for number, ids in enumerate(tokenizer.encode_document(text)):
                yield ids
                if progress is not None and 0 < number * PIECE < len(document.data):  # an array is a piece of this size
                    progress(done + number * PIECE, total)
            words += count_text_words(text, text)
            done += len(document.data)
            if progress is not None:
                progress(done, total)

    return {**write_token_ids(file, arrays(), tokenizer.dtype), "words": words, "bytes": total}


def count_text_words(text: str, ending: str | None) -> int:
    """Words and line ends in a part of a document; `ending` is the last part of it, None if more follows."""
    unended = ending is not None and not ending.endswith("\n")
    return len(text.split()) + text.count("\n") + unended


def _read(path: Path, key: str, split: str) -> Stream | None:
    """The stream in a cache file, or None if the file is missing or damaged."""
    found = read_token_file(path, key)
    return None if found is None else Stream(split, found[0], found[1]["words"], found[1]["bytes"])


def _create(temporary: Path) -> IO[bytes]:
    """A new file of this name, or a temporary one if the folder is not writable."""
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        return temporary.open("x+b")
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return tempfile.TemporaryFile()
