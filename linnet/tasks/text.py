"""The shared part of the text tasks: a corpus, a tokenizer, and one stream of tokens per split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from linnet.config import DataSettings, Place, RunConfig, short_config_value
from linnet.data.corpora import SPLITS, Corpus, default_wikitext_corpus, load_corpus
from linnet.data.enwik8 import default_enwik8
from linnet.data.mixture import mixture_shares
from linnet.data.packing import Blocks, Stream, open_packed_stream
from linnet.data.tokenizer import Tokenizer, build_tokenizer, default_gpt2_tokenizer
from linnet.errors import InputError
from linnet.storage import cache_folder, read_json_file
from linnet.tasks.base import Batch, Indices, Task, Work
from linnet.tasks.sharded_text import SAMPLE, ShardedText, TextPart, few_text_names

FEWEST = {"bpe": 261, "word": 5}  # tokens: the special ones and, for bpe, each byte
_made: dict[tuple[object, ...], Tokenizer] = {}  # the last one, since the runs of a study all have the same


class TextData(DataSettings):
    """The text, how it becomes tokens, and the length of a sample."""

    corpus: Literal["stdlib", "wikitext", "enwik8", "text", "shards"] = "stdlib"
    path: Place = None
    mixture: dict[str, TextPart] | None = None
    kind: Literal["text", "jsonl", "parquet"] | None = None
    field: Annotated[str, Field(min_length=1)] | None = None
    valid_path: Place = None
    test_path: Place = None
    held_out: Literal["auto", "files", "parts"] | None = None  # None in a run folder means the rule of version 0.1
    skip_bad: bool | None = None
    tokenizer: Literal["bpe", "bytes", "gpt2", "word"] = "bpe"
    vocab_size: Annotated[int, Field(ge=2, le=10**7)] | None = None
    tokenizer_path: Place = None
    context: Annotated[int, Field(ge=2, le=10**7)] = 256
    cache: Place = None

    def check(self) -> None:
        """Raise if the corpus does not match its path, or the tokenizer its size or files."""
        if self.tokenizer in ("bytes", "gpt2") and self.vocab_size is not None:
            raise InputError(f"data.vocab_size is {self.vocab_size}: the tokenizer {self.tokenizer!r} has its own size")
        if self.corpus == "stdlib" and self.path is not None:
            raise InputError(
                f"data.path is {short_config_value(self.path)}: data.corpus 'stdlib' takes no path, 'text' does"
            )
        for name in ("valid_path", "test_path", "held_out", "skip_bad"):
            value = getattr(self, name)
            if self.corpus not in ("text", "shards") and value is not None:
                line = f"data.{name} is {short_config_value(value)}: only data.corpus 'text' and 'shards' use it"
                raise InputError(line)
        if self.tokenizer != "gpt2" and self.tokenizer_path is not None:
            place = short_config_value(self.tokenizer_path)
            raise InputError(f"data.tokenizer_path is {place}: only data.tokenizer 'gpt2' reads files")
        fewest = FEWEST.get(self.tokenizer, 0)
        if self.vocab_size is not None and self.vocab_size < fewest:
            name = self.tokenizer
            raise InputError(f"data.vocab_size is {self.vocab_size}: the tokenizer {name!r} needs at least {fewest}")
        if self.corpus == "text" and self.path is None:
            raise InputError("data.path is missing: set it to your text, for example --set data.path=my.txt")
        self._check_shards()

    def _check_shards(self) -> None:
        """Raise if the keys of sharded corpora contradict each other."""
        for name in ("mixture", "kind", "field"):
            if self.corpus != "shards" and getattr(self, name) is not None:
                value = short_config_value(getattr(self, name))
                raise InputError(f"data.{name} is {value}: only data.corpus 'shards' uses it")
        if self.corpus == "shards" and self.path is None and self.mixture is None:
            raise InputError("data.path is missing: set it to a file or folder, or set data.mixture to several")
        if self.mixture is not None:
            if not self.mixture:
                raise InputError("data.mixture is empty: give each corpus a table with path and weight")
            for name in ("path", "valid_path", "test_path", "kind", "field"):
                if getattr(self, name) is not None:
                    value = short_config_value(getattr(self, name))
                    raise InputError(f"data.{name} is {value}: with data.mixture, each corpus in it has its own {name}")
            mixture_shares({name: part.weight for name, part in self.mixture.items()})

    def parts(self) -> dict[str, TextPart]:
        """The corpora of a mixture by name; a single one is called by its file or folder."""
        if self.mixture is not None:
            return self.mixture
        own = {name: getattr(self, name) for name in ("path", "kind", "field", "valid_path", "test_path")}
        return {Path(own["path"]).name: TextPart(weight=1.0, **own)}

    def full_paths(self) -> dict[str, Any]:
        """The table with full paths, including those of a mixture's parts."""
        parts = None if self.mixture is None else {name: part.absolute() for name, part in self.mixture.items()}
        return {**super().full_paths(), **({} if parts is None else {"mixture": parts})}

    def without_paths(self) -> dict[str, Any]:
        """The table without paths, including those of a mixture's parts."""
        parts = None if self.mixture is None else {name: part.without_paths() for name, part in self.mixture.items()}
        return {**super().without_paths(), "mixture": parts}


class TextTask(Task):
    """A task on text: a corpus, a tokenizer, and one stream of tokens per split, cut into blocks."""

    Data = TextData
    data: TextData
    needs_mask: ClassVar[bool] = False
    sliceable = True

    @staticmethod
    def places(data: TextData) -> dict[str, Path]:
        """The folders of WikiText-2, enwik8 and GPT-2's files in LINNET_DATA, if needed."""
        found = {}
        if data.corpus == "wikitext" and data.path is None:
            found["path"] = default_wikitext_corpus()
        if data.corpus == "enwik8" and data.path is None:
            found["path"] = default_enwik8()
        if data.tokenizer == "gpt2" and data.tokenizer_path is None:
            found["tokenizer_path"] = default_gpt2_tokenizer()
        return found

    @staticmethod
    def fresh(data: TextData) -> dict[str, Any]:
        """How a new run holds out text; version 0.1 used another rule and did not record it."""
        return {"held_out": "auto"} if data.corpus in ("text", "shards") and data.held_out is None else {}

    def __init__(
        self, config: RunConfig, cache: Path | None = None, folder: Path | None = None, work: Work | None = None
    ) -> None:
        super().__init__(config, cache, folder, work)
        self.corpus = self._load()
        self.tokenizer = self._tokenizer()
        if isinstance(self.corpus, Corpus):
            self.prepare()

    def _load(self) -> Corpus | ShardedText:
        """The text: in memory, or in files that are checked but not yet tokenized."""
        if self.data.corpus == "shards":
            key = "data" if self.data.mixture is None else "data.mixture"
            rules = (self.data.held_out or "auto", bool(self.data.skip_bad))
            return ShardedText(key, self.data.parts(), *rules, self.cache or cache_folder(), self.work)
        own = {name: getattr(self.data, name) for name in ("held_out", "valid_path", "test_path")}
        return load_corpus(self.data.corpus, self.data.path, **own, skip_bad=bool(self.data.skip_bad))

    def prepare(self) -> None:
        """Tokenize, or find the tokens in the cache."""
        _ = self.blocks

    @cached_property
    def streams(self) -> dict[str, Stream]:
        """The tokens of each split."""
        corpus, found = self.corpus, {}
        if isinstance(corpus, ShardedText):
            return {split: corpus.open(split, self.tokenizer) for split in SPLITS}
        for split in SPLITS:
            show = self.work(f"reading the {split} text")
            found[split] = open_packed_stream(corpus, self.tokenizer, split, self.cache, show)
        return found

    @cached_property
    def blocks(self) -> dict[str, Blocks]:
        """The blocks of each split."""
        found = {}
        for split, stream in self.streams.items():
            found[split] = Blocks(stream, self.data.context, whole=split != "train")
            if not len(found[split]):
                raise InputError(f"the {split} split of the corpus is empty: give more text")
        if isinstance(self.corpus, ShardedText):
            self.corpus.train_blocks(self.data.context)
        return found

    def train_samples(self, number: int) -> tuple[Indices, Indices]:
        """Sharded corpora compute their own order, which takes no memory."""
        if isinstance(self.corpus, Corpus):
            return super().train_samples(number)
        self.prepare()
        size = self.config.train.batch
        numbers = number * size + np.arange(size, dtype=np.int64)
        return self.corpus.draw(self.config.seed, numbers, self.data.context)

    def slice_batch(self, batch: Batch) -> Batch:
        """This rank's slice of each block, and the selected tokens in it."""
        if self.token_slice[1] == 1:
            return batch
        size = self.data.context // self.token_slice[1]
        first = self.token_slice[0] * size
        own = {name: x[:, first : first + size].contiguous() for name, x in batch.items() if x.dim() == 2}
        if "select" in batch:
            row, token = batch["select"] // self.data.context, batch["select"] % self.data.context
            here = (first <= token) & (token < first + size)
            own |= {"select": (row * size + token - first)[here], "targets": batch["targets"][here]}
        return own

    def planned(self) -> dict[str, Any]:
        """Sharded corpora are not tokenized for a plan: their tokens are listed in the cache, or estimated."""
        if isinstance(self.corpus, Corpus):
            return super().planned()
        place = cache_folder() if self.data.cache is None else Path(self.data.cache)
        return self.corpus.plan(self.tokenizer, self.data.context, place)

    def _tokenizer(self) -> Tokenizer:
        """The tokenizer of the run, or a new one built from the training text."""
        if self.folder is not None and (self.folder / "tokenizer.json").exists():
            return Tokenizer.load(self.folder / "tokenizer.json")
        progress = self._learning() if self.data.tokenizer in ("bpe", "word") else None
        made = make_text_tokenizer(self.data, self.corpus, self.needs_mask, progress)
        lost = self.folder is not None and made.as_old().sha256 == _recorded_tokenizer(self.folder)
        return made.as_old() if lost else made  # a run of version 0.1 whose file is lost gets the file that it had

    def _learning(self) -> Callable[[int], None]:
        """Announce that a tokenizer is learned; returns the function to call with the bytes read so far."""
        show, total = self.work(f"learning the tokenizer ({self.data.tokenizer})"), self.corpus.size("train")
        total = min(total, SAMPLE) if isinstance(self.corpus, ShardedText) else total
        show(0, total)  # it may have been made already
        return lambda done: show(done, total)

    @classmethod
    def planned_fields(cls, data: Any, pretrain: bool = False) -> dict[str, Any]:
        """The vocabulary size, if it does not depend on the text."""
        return {} if data.vocab_size is None else {"vocab_size": data.vocab_size}

    def remarks(self) -> list[str]:
        """The amount of text, and which files are held out or skipped."""
        if isinstance(self.corpus, ShardedText):
            return self.corpus.remarks()
        if self.data.corpus != "text":
            return []
        sizes = ", ".join(f"{split} {self.corpus.size(split):,}" for split in SPLITS)
        lines = [f"bytes of text: {sizes}"]
        for split in SPLITS[1:]:
            names = list(dict.fromkeys(document.name for document in self.corpus.splits[split]))
            where = "" if getattr(self.data, f"{split}_path") else f" ({self.corpus.held_out})"
            lines.append(f"held out for {split}{where}: {few_text_names(names)}")
        if self.corpus.passed_over:
            lines.append(f"skipped: {few_text_names([f'{name} ({why})' for name, why in self.corpus.passed_over])}")
        return lines

    def model_fields(self) -> dict[str, Any]:
        """The vocabulary size, and the padding id."""
        return {"vocab_size": self.tokenizer.vocab_size, "pad": Tokenizer.pad}

    def at_once(self) -> tuple[int, int]:
        """A batch of blocks, each as long as the context."""
        return self.config.train.batch * self.data.context, 0

    def words(self, ids: Sequence[int]) -> tuple[list[str], str]:
        """The tokens as the tokenizer shows them."""
        return self.tokenizer.words(ids)

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 of each split's text, and of the tokenizer."""
        return {**self.corpus.sha256, "tokenizer": self.tokenizer.sha256}

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json`."""
        self.tokenizer.save(folder / "tokenizer.json")

    def count(self, split: str) -> int:
        """Number of blocks."""
        return len(self.blocks[split])


def _recorded_tokenizer(folder: Path) -> object:
    """The SHA-256 of the tokenizer that the environment.json of a run records; None if it records none."""
    path = folder / "environment.json"
    about = read_json_file(path) if path.exists() else None
    data = about.get("data") if isinstance(about, dict) else None
    return data.get("tokenizer") if isinstance(data, dict) else None


def make_text_tokenizer(
    data: TextData, corpus: Corpus | ShardedText, mask: bool, progress: Callable[[int], None] | None = None
) -> Tokenizer:
    """The tokenizer that [data] asks for; if no size is set, the size of a BPE depends on the size of the text.

    It is built from the training text; from a sample of it, if it is sharded and large. `progress` is called with the
    bytes that have been read, if one is learned.
    """
    size = data.vocab_size
    if data.tokenizer == "bpe" and size is None:
        size = fitting_text_vocabulary(corpus.size("train"))
    texts: Iterable[str]
    if isinstance(corpus, Corpus):
        texts = (document.text for document in corpus.splits["train"])
    else:
        texts = corpus.sample()
    key = (data.tokenizer, corpus.sha256["train"], size, data.tokenizer_path, mask)
    if key not in _made:
        _made.clear()
        _made[key] = build_tokenizer(data.tokenizer, texts, size, data.tokenizer_path, mask, progress)
    return _made[key]


def fitting_text_vocabulary(size: int) -> int:
    """The size of a BPE for a text of `size` bytes: the power of two nearest to 2 sqrt(size), 512 to 16,384."""
    return int(min(max(2 ** round(math.log2(2 * math.sqrt(max(size, 1)))), 512), 16_384))
