"""Text to token ids and back, in four kinds: words, byte-level BPE trained here, GPT-2's BPE, and bytes.

All kinds use fairseq's order of ids: `<s> <pad> </s> <unk>` are 0 to 3, then come the symbols of the kind, and
`<mask>`, if there is one, is last. So GPT-2's files with fairseq's dict.txt give RoBERTa's ids.
"""

import codecs
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from linnet.data.tokenizer_file import (
    BYTES_OF_LETTERS,
    KINDS,
    OLD_FORMAT,
    bpe_fault,
    dump_tokenizer_file,
    read_tokenizer_file,
    tokenizer_fault,
)
from linnet.data.tokenizer_file import MASK as MASK
from linnet.data.tokenizer_file import SPECIALS as SPECIALS
from linnet.errors import InputError, unknown_name_error
from linnet.storage import LARGEST_TEXT, read_json_file, read_regular_file, write_file_atomic

if TYPE_CHECKING:
    import tokenizers


# Where a text can be cut without changing its ids: byte-level BPE never merges across these line ends.
SAFE_CUT = re.compile(r"(?<=\S)\n(?=\S)|\n(?= \S)")
PIECE = 1 << 16  # characters
PIECES_AT_ONCE = 64
# Learning merges takes time quadratic in the length of a word, so very long runs of one kind of character are cut.
LONGEST = 512  # characters
LONG_SPACE = re.compile(rf"\s{{{LONGEST}}}")
LONG_RUN = re.compile(rf"[^\W\d_]{{{LONGEST}}}|\d{{{LONGEST}}}|\s{{{LONGEST}}}|(?:[^\w\s]|_){{{LONGEST}}}")


class Tokenizer:
    """`encode` text to ids and `decode` ids to text; its whole state is in its JSON file.

    Special words in a text are ordinary text: `<mask>` in a file never becomes the id of the mask.
    """

    bos, pad, eos, unk = range(4)

    def __init__(
        self,
        kind: str,
        symbols: Sequence[str] = (),
        merges: Sequence[Sequence[str]] = (),
        mask: bool = True,
        old: bool = False,
    ) -> None:
        """`old`: written in the format of version 0.1."""
        if kind not in KINDS:
            raise unknown_name_error("tokenizer", kind, KINDS)
        self.kind, self._old = kind, old
        self._symbols = list(symbols)
        self._merges = [(left, right) for left, right in merges]
        self._ids = {symbol: i for i, symbol in enumerate(self._symbols, len(SPECIALS))}
        self.vocab_size = len(SPECIALS) + (256 if kind == "bytes" else len(self._symbols)) + mask
        self.mask = self.vocab_size - 1 if mask else None
        self.special_ids = (*range(len(SPECIALS)), *([] if self.mask is None else [self.mask]))
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an `</s>` at its end; the kind `word` encodes each end of line as `</s>`."""
        data = _utf8(text)
        if self.kind == "bytes":
            return [len(SPECIALS) + byte for byte in data]
        if self.kind == "word":
            return self._encode_words(text)
        return list(self._bpe.encode(text, add_special_tokens=False).ids)

    def encode_document(self, text: str) -> Iterator[NDArray[Any]]:
        """The ids of a whole document, as consecutive arrays, with an `</s>` at its end."""
        yield from self.encode_part(text)
        end = self.encode_end(text)
        if len(end):
            yield end

    def encode_part(self, text: str) -> Iterator[NDArray[Any]]:
        """The ids of a part of a document, as consecutive arrays."""
        pieces = list(_pieces(text, PIECE))
        for start in range(0, len(pieces), PIECES_AT_ONCE):
            batch = pieces[start : start + PIECES_AT_ONCE]
            if self.kind in ("bpe", "gpt2"):
                encodings = self._bpe.encode_batch_fast(batch, add_special_tokens=False)
                yield from (np.array(encoding.ids, self.dtype) for encoding in encodings)
            elif self.kind == "bytes":
                data = (np.frombuffer(_utf8(piece), np.uint8) for piece in batch)
                yield from (ids.astype(self.dtype) + self.dtype.type(len(SPECIALS)) for ids in data)
            else:
                yield from (np.array(self.encode(piece), self.dtype) for piece in batch)

    def encode_end(self, text: str) -> NDArray[Any]:
        """The ids that end a document whose last part is `text`: an `</s>`.

        For the kind `word` that is the `</s>` of the last line, so every line has exactly one.
        """
        ended = self.kind == "word" and text.endswith("\n")
        return np.array([] if ended else [self.eos], self.dtype)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; bytes that are not UTF-8 become U+FFFD, and special ids are dropped."""
        stream = TextStream(self)
        return "".join(map(stream.push, ids)) + stream.close()

    def token(self, token: int) -> str:
        """One token in readable form; stray bytes appear as `\\xff`."""
        if not 0 <= token < self.vocab_size:
            raise InputError(f"token {token} does not exist: ids are 0 to {self.vocab_size - 1}")
        if token in self.special_ids:
            return MASK if token == self.mask else SPECIALS[token]
        if self.kind == "word":
            return self._symbols[token - len(SPECIALS)]
        return self.token_bytes(token).decode(errors="backslashreplace")

    def words(self, tokens: Sequence[int]) -> tuple[list[str], str]:
        """Tokens in readable form, and the separator between two of them."""
        return [self.token(token) for token in tokens], " " if self.kind == "word" else ""

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token of a byte-level kind; none for a special token."""
        if token in self.special_ids:
            return b""
        if self.kind == "bytes":
            return bytes([token - len(SPECIALS)])
        return bytes(BYTES_OF_LETTERS[character] for character in self._symbols[token - len(SPECIALS)])

    def dumps(self) -> bytes:
        """The content of `tokenizer.json`, in the format of the library `tokenizers` or of version 0.1."""
        if self._old:
            content = {"format": OLD_FORMAT, "kind": self.kind, "mask": self.mask is not None}
            return json.dumps({**content, "symbols": self._symbols, "merges": self._merges}, indent=0).encode()
        return self.to_library().encode()

    def to_library(self) -> str:
        """What `tokenizers.Tokenizer.from_str` loads."""
        content = dump_tokenizer_file(self.kind, self._symbols, self._merges, self.mask is not None)
        return json.dumps(content, indent=0, ensure_ascii=False)

    def as_old(self) -> "Tokenizer":
        """The same tokenizer, written in the format of version 0.1."""
        return Tokenizer(self.kind, self._symbols, self._merges, self.mask is not None, old=True)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of `dumps`: tokenizers with the same hash give the same ids."""
        return hashlib.sha256(self.dumps()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write `tokenizer.json`."""
        write_file_atomic(path, self.dumps())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a file that `save` wrote, now or in version 0.1; anything else raises InputError."""
        content = read_json_file(path)
        old = isinstance(content, dict) and "format" in content
        found: Any = content if old or not isinstance(content, dict) else read_tokenizer_file(content)
        fault = found if isinstance(found, str) else tokenizer_fault(found, old)
        if fault:
            raise InputError(f"{path} is not a tokenizer of linnet: {fault}")
        return cls(found["kind"], found["symbols"], found["merges"], found["mask"], old)

    @cached_property
    def _bpe(self) -> "tokenizers.Tokenizer":
        from tokenizers import Tokenizer as Bpe
        from tokenizers import models, pre_tokenizers

        bpe = Bpe(models.BPE(vocab=self._ids, merges=self._merges))
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return bpe

    def _encode_words(self, text: str) -> list[int]:
        get = self._ids.get
        ids: list[int] = []
        for line in text.split("\n"):
            ids.extend(get(word, self.unk) for word in line.split())
            ids.append(self.eos)
        return ids[:-1]  # the text after the last line end is not a finished line


class TextStream:
    """Decode ids one at a time, to show text while it is generated: `push` each id, `close` at the end.

    A character whose bytes span several tokens comes out with the last of them. `after` holds the ids before.
    """

    def __init__(self, tokenizer: Tokenizer, after: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._space = ""
        for token in after:
            self.push(token)

    def push(self, token: int) -> str:
        """The text that this token completes."""
        tokenizer = self._tokenizer
        if tokenizer.kind != "word":
            return self._decoder.decode(tokenizer.token_bytes(token))
        if token == tokenizer.eos:
            self._space = ""
            return "\n"
        if token in tokenizer.special_ids and token != tokenizer.unk:
            return ""
        text = self._space + tokenizer.token(token)
        self._space = " "
        return text

    def close(self) -> str:
        """The rest of the text: a character that was cut short, if any."""
        return self._decoder.decode(b"", final=True)


def build_tokenizer(
    kind: str,
    texts: Iterable[str] = (),
    vocab_size: int | None = None,
    path: str | Path | None = None,
    mask: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Tokenizer:
    """A tokenizer of the given kind, built from the training texts (`word`, `bpe`) or from files (`gpt2`).

    `bpe` needs a `vocab_size`; `word` cuts its dictionary there and then fills it up to a multiple of 8; the other
    two have a fixed size. `path` is the folder of encoder.json, vocab.bpe and optionally dict.txt (default:
    `gpt2-bpe` in LINNET_DATA). `mask` adds `<mask>` to the kind `word`, because published dictionaries for causal
    models have none; the other kinds always have it. `progress` is called with the number of bytes read so far.
    """
    if kind == "word":
        return Tokenizer("word", _dictionary(_read_pieces(texts, progress), vocab_size), mask=mask)
    if kind == "bpe":
        return _train_bpe(_read_pieces(texts, progress), vocab_size)
    if kind == "gpt2":
        return _read_gpt2(Path(path) if path is not None else default_gpt2_tokenizer())
    return Tokenizer(kind)


def _read_pieces(texts: Iterable[str], progress: Callable[[int], None] | None) -> Iterator[str]:
    """The texts in pieces; reading them takes most of the time of building a tokenizer."""
    done = 0
    for text in texts:
        for piece in _pieces(text, PIECE):
            yield piece
            done += len(piece.encode())
            if progress is not None:
                progress(done)


def _dictionary(pieces: Iterable[str], vocab_size: int | None) -> list[str]:
    """fairseq's rule: words by decreasing count, ties in alphabetical order, padded to a multiple of 8."""
    room = None if vocab_size is None else vocab_size - len(SPECIALS)
    if room is not None and room < 1:
        raise InputError(f"data.vocab_size is {vocab_size}: a tokenizer of words needs at least 5")
    counts: Counter[str] = Counter()
    for piece in pieces:
        counts.update(piece.split())
    for special in (*SPECIALS, MASK):
        counts.pop(special, None)
    words = sorted(counts, key=lambda word: (-counts[word], word))[:room]
    return _filled(words)


def _filled(symbols: list[str]) -> list[str]:
    """Append fairseq's made-up words until the size, including the four specials, is a multiple of 8."""
    have, i = set(symbols), 0
    while (len(SPECIALS) + len(symbols)) % 8:
        made_up = f"madeupword{i:04d}"
        if made_up not in have:
            symbols.append(made_up)
        i += 1
    return symbols


def _train_bpe(pieces: Iterable[str], vocab_size: int | None) -> Tokenizer:
    from tokenizers import Tokenizer as Bpe
    from tokenizers import models, pre_tokenizers, trainers

    fewest = len(SPECIALS) + 256 + 1
    if vocab_size is None or vocab_size < fewest:
        raise InputError(f"data.vocab_size is {vocab_size}: the tokenizer 'bpe' needs at least {fewest}")
    bpe = Bpe(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIALS) - 1,
        min_frequency=2,
        initial_alphabet=sorted(BYTES_OF_LETTERS),
        show_progress=False,
    )
    bpe.train_from_iterator((part for piece in pieces for part in _without_long_runs(piece)), trainer)
    model = json.loads(bpe.to_str())["model"]
    return Tokenizer("bpe", sorted(model["vocab"], key=model["vocab"].__getitem__), model["merges"])


def default_gpt2_tokenizer() -> Path:
    """The folder of GPT-2's files in LINNET_DATA, used if a run names no folder."""
    data = os.environ.get("LINNET_DATA")
    if not data:
        raise InputError("the tokenizer 'gpt2' needs a folder of encoder.json and vocab.bpe, or LINNET_DATA")
    return Path(data) / "gpt2-bpe"


def _read_gpt2(folder: Path) -> Tokenizer:
    """Read GPT-2's files, in the order of fairseq's dict.txt if it exists, else in that of encoder.json."""
    merges = [line.split() for line in _lines(folder / "vocab.bpe") if not line.startswith("#version")]
    numbers = read_json_file(folder / "encoder.json")
    values = list(numbers.values()) if isinstance(numbers, dict) else []
    if {type(value) for value in values} != {int} or sorted(values) != list(range(len(values))):
        raise InputError(f"{folder / 'encoder.json'} does not number its symbols from 0 on")
    symbols = sorted(numbers, key=numbers.__getitem__)
    if (folder / "dict.txt").exists():
        rows = [line.split()[0] for line in _lines(folder / "dict.txt")]
        order = [int(row) for row in rows if row.isdecimal()]  # the others are made-up words that fill the dictionary
        if sorted(order) != list(range(len(symbols))):
            raise InputError(f"{folder / 'dict.txt'} does not list each number of encoder.json once")
        symbols = [symbols[i] for i in order]
    symbols = _filled(symbols)
    fault = bpe_fault(symbols, merges)
    if fault:
        raise InputError(f"{folder / 'vocab.bpe'} does not fit encoder.json: {fault}")
    return Tokenizer("gpt2", symbols, merges)


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in read_regular_file(path, LARGEST_TEXT).decode().split("\n") if line.strip()]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text") from error


def _utf8(text: str) -> bytes:
    """The bytes of a text; half a surrogate pair has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the text is not valid Unicode at character {error.start + 1}") from error


def _pieces(text: str, size: int) -> Iterator[str]:
    """A long text in parts of at least `size` characters, each up to the next safe cut."""
    start = 0
    while start < len(text):
        cut = SAFE_CUT.search(text, min(start + size, len(text)))
        end = cut.end() if cut else len(text)
        yield text[start:end]
        start = end


def _without_long_runs(text: str) -> Iterator[str]:
    """A text in parts without words of more than LONGEST characters; ordinary text is one part."""
    start = 0
    suspect = max(map(len, text.split()), default=0) >= LONGEST or LONG_SPACE.search(text)  # faster than the regex
    for run in LONG_RUN.finditer(text) if suspect else ():
        yield text[start : run.end()]
        start = run.end()
    yield text[start:]
