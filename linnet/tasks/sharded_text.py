"""The large corpora of a text task: their tokens as one stream, the order in which they are read, and what is said.

The stream of a split is that of one corpus after the other. A block belongs to the corpus that its first token is from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from linnet.config import Place, Settings
from linnet.data.corpora import SPLITS
from linnet.data.mixture import PERIOD, draw_mixture_samples, mixture_shares
from linnet.data.packing import Stream
from linnet.data.sharded_corpus import ShardedCorpus, load_sharded_corpus
from linnet.data.shards import (
    ShardedSplit,
    ShardTokens,
    listed_shard_tokens,
    open_shards,
    shard_folder,
    tokens_per_byte_of_shards,
)
from linnet.data.sources import Place as SourcePlace
from linnet.data.tokenizer import Tokenizer
from linnet.errors import InputError
from linnet.storage import dump_json_file
from linnet.tasks.base import Indices, Work

SAMPLE = 64 << 20  # bytes of text from which a tokenizer is learned, at most
GLANCE = 1 << 20  # bytes of text of each corpus from which a dry run estimates its tokens


class TextPart(Settings):
    """One corpus of [data.mixture]: where it is, how it is read, and its weight."""

    path: Annotated[str, Field(min_length=1)]
    weight: Annotated[float, Field(gt=0, le=1e9)]
    kind: Literal["text", "jsonl", "parquet"] | None = None
    field: Annotated[str, Field(min_length=1)] | None = None
    valid_path: Place = None
    test_path: Place = None

    def absolute(self) -> TextPart:
        """This corpus with full paths."""
        places = {name: getattr(self, name) for name in ("path", "valid_path", "test_path")}
        return self.model_copy(update={name: str(Path(p).absolute()) for name, p in places.items() if p is not None})

    def without_paths(self) -> dict[str, Any]:
        """The settings without paths: what a resumed run must not change."""
        return self.model_dump(mode="json", exclude={"path", "valid_path", "test_path"})


class ShardedText:
    """Corpora on disk, each checked; `key` is the table of the configuration that named them."""

    def __init__(
        self, key: str, parts: Mapping[str, TextPart], held_out: str, skip_bad: bool, cache: Path, work: Work
    ) -> None:
        self.cache, self.work = cache, work
        self.parts = dict(sorted(parts.items()))
        self.shares = mixture_shares({name: part.weight for name, part in self.parts.items()})
        self.corpora: dict[str, ShardedCorpus] = {}
        for name, part in self.parts.items():
            table = f"{key}.{name}" if key == "data.mixture" else key

            def place(which: str, part: TextPart = part, table: str = table) -> SourcePlace:
                return SourcePlace(f"{table}.{which}", getattr(part, which), part.kind, part.field or "text", skip_bad)

            own = {split: place(f"{split}_path") for split in SPLITS[1:] if getattr(part, f"{split}_path") is not None}
            self.corpora[name] = load_sharded_corpus(name, place("path"), held_out, own, cache, work)
        self._opened: dict[str, list[ShardedSplit]] = {}

    @cached_property
    def sha256(self) -> dict[str, str]:
        """For each split, the SHA-256 of what is read; of several corpora, of theirs."""
        if len(self.corpora) == 1:
            (corpus,) = self.corpora.values()
            return corpus.sha256
        found = {}
        for split in SPLITS:
            each = {name: corpus.sha256[split] for name, corpus in self.corpora.items()}
            found[split] = hashlib.sha256(dump_json_file(each, split)).hexdigest()
        return found

    def size(self, split: str) -> int:
        """Bytes of text in a split."""
        return sum(corpus.size(split) for corpus in self.corpora.values())

    def sample(self) -> Iterator[str]:
        """The training text, or a sample of SAMPLE bytes, in which each corpus has its share of the mixture."""
        whole = self.size("train") <= SAMPLE
        for corpus, share in zip(self.corpora.values(), self.shares, strict=True):
            yield from corpus.sample("train", corpus.size("train") if whole else SAMPLE * share // PERIOD)

    def open(self, split: str, tokenizer: Tokenizer) -> Stream:
        """The tokens of a split, from the cache or made now."""
        opened = [open_shards(corpus, tokenizer, split, self.cache, self.work) for corpus in self.corpora.values()]
        self._opened[split] = opened
        tokens: Any = ShardTokens([shard for each in opened for shard in each.shards])
        return Stream(split, tokens, *(sum(each.sum(field) for each in opened) for field in ("words", "bytes")))

    def draw(self, seed: int, numbers: Indices, context: int) -> tuple[Indices, Indices]:
        """The block of each of these training samples, and its epoch in its corpus."""
        firsts, counts = self.train_blocks(context)
        owners, blocks, epochs = draw_mixture_samples(seed, numbers, self.shares, counts)
        return np.asarray(firsts, np.int64)[owners] + blocks, epochs

    def train_blocks(self, context: int) -> tuple[list[int], list[int]]:
        """The first block of each corpus in the training stream, and its number of blocks; raises if there are none."""
        sizes = [each.sum("count") for each in self._opened["train"]]
        ends = np.cumsum([0, *sizes]).tolist()
        borders = [min(-(-end // context), ends[-1] // context) for end in ends]
        counts = [after - before for before, after in pairwise(borders)]
        for name, count, size in zip(self.corpora, counts, sizes, strict=True):
            if size < context or count < 1:
                few = f"the train split of {name} has {size} tokens, too few for a block of data.context = {context}"
                raise InputError(f"{few}: give more text or a smaller context")
        return borders[:-1], counts

    def plan(self, tokenizer: Tokenizer, context: int, cache: Path) -> dict[str, Any]:
        """Tokens of each split of each corpus, and samples: as listed in the cache, else estimated."""
        found: dict[str, dict[str, int]] = {}
        estimated = []
        for name, corpus in self.corpora.items():
            listed = {s: listed_shard_tokens(shard_folder(corpus, tokenizer, s, cache)) for s in SPLITS}
            rate = None
            if None in listed.values():
                rate = tokens_per_byte_of_shards(corpus, tokenizer, "train", GLANCE)
                estimated.append(name)
            found[name] = {s: round((rate or 0) * corpus.size(s)) if t is None else t for s, t in listed.items()}
        total = {split: sum(tokens[split] for tokens in found.values()) for split in SPLITS}
        samples = {
            split: tokens // context if split == "train" else -(-tokens // context) for split, tokens in total.items()
        }
        return {"samples": samples, "corpora": found, "estimated": estimated}

    def remarks(self) -> list[str]:
        """The amount of text, and which files are held out or skipped."""
        lines = []
        for number, (name, corpus) in enumerate(self.corpora.items()):
            files = len({piece.source.path for pieces in corpus.splits.values() for piece in pieces})
            line = f"{name}: {files:,} files, {sum(map(corpus.size, SPLITS)):,} bytes of text"
            if len(self.corpora) > 1:
                line += f", {self.shares[number] / PERIOD:.4g} of the samples"
            if self._opened:
                counts = ", ".join(f"{split} {self._opened[split][number].sum('count'):,}" for split in SPLITS)
                line += f"; tokens: {counts}"
            lines.append(line)
            for split in SPLITS[1:]:
                names = list(dict.fromkeys(piece.source.name for piece in corpus.splits[split]))
                where = "" if getattr(self.parts[name], f"{split}_path") else f" ({corpus.held_out})"
                lines.append(f"held out for {split}{where}: {few_text_names(names)}")
            if corpus.passed_over:
                lines.append(f"skipped: {few_text_names([f'{file} ({why})' for file, why in corpus.passed_over])}")
        mended = sum(each.mended for opened in self._opened.values() for each in opened)
        return [*lines, f"{mended:,} damaged shards of the cache were made again"] if mended else lines


def few_text_names(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
