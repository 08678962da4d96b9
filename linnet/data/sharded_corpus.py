"""A corpus that is never in memory as a whole: which part of which file belongs to which split."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from linnet.data.held_out import SHARES, SPLITS, hold_out_whole_files
from linnet.data.source_texts import PIECE, read_source_texts
from linnet.data.sources import Place, Source, cut_source_for_shard, cut_source_held_out, scan_sources
from linnet.errors import InputError
from linnet.storage import dump_json_file

SEGMENTS = 256  # places in a large corpus from which a sample is taken


@dataclass(frozen=True)
class Piece:
    """A part of a file; in plain text a document ends with it if `ends`."""

    source: Source
    start: int
    stop: int
    ends: bool = True

    @property
    def bytes(self) -> int:
        """Bytes of text, on the average of the file."""
        return self.source.text * (self.stop - self.start) // max(self.source.length, 1)

    def read(self) -> Iterator[tuple[str, bool]]:
        """The text in parts, each with whether a document ends there; skips rows that were reported before."""
        self.source.check_stamp()
        source, last = self.source, ""
        for text, ended in read_source_texts(
            source.path, source.kind, source.field, self.start, self.stop, lambda where, why: None
        ):
            last = text
            yield text, ended and (self.ends or source.kind != "text")
        if last:
            self.source.check_stamp()


@dataclass(frozen=True)
class ShardedCorpus:
    """The pieces of each split, the files that were skipped with the reason, and how text was held out."""

    name: str
    splits: dict[str, tuple[Piece, ...]]
    passed_over: tuple[tuple[str, str], ...]
    held_out: str

    def size(self, split: str) -> int:
        """Bytes of text in a split."""
        return sum(piece.bytes for piece in self.splits[split])

    @cached_property
    def sha256(self) -> dict[str, str]:
        """For each split, the SHA-256 of what is read: the content of the files and the parts of them."""
        hashes = {}
        for split, pieces in self.splits.items():
            read = [
                [p.source.sha256, p.source.kind, p.source.field if p.source.kind != "text" else "", p.start, p.stop]
                for p in pieces
            ]
            hashes[split] = hashlib.sha256(dump_json_file(read, split)).hexdigest()
        return hashes

    def sample(self, split: str, size: int) -> Iterator[str]:
        """About `size` bytes of a split, taken from many places; all of the split if it is smaller."""
        if self.size(split) <= size:
            yield from (text for piece in self.splits[split] for text, _ in piece.read())
            return
        count = min(SEGMENTS, max(size // PIECE, 1))
        for piece, place in self._places(split, count):
            start = cut_source_for_shard(piece.source, max(place, 1), piece.stop)
            start = piece.start if start is None else start
            yield from _some(Piece(piece.source, start, piece.stop), size // count)

    def _places(self, split: str, count: int) -> Iterator[tuple[Piece, int]]:
        """Places at equal distances in a split, each in its piece."""
        step, before, number = self.size(split) / count, 0, 0
        for piece in self.splits[split]:
            while number < count and number * step < before + piece.bytes:
                share = (number * step - before) / piece.bytes
                yield piece, piece.start + int(share * (piece.stop - piece.start))
                number += 1
            before += piece.bytes


def _some(piece: Piece, size: int) -> Iterator[str]:
    """The first `size` bytes of a piece, or a little more."""
    for text, _ in piece.read():
        yield text
        size -= len(text.encode())
        if size <= 0:
            return


def load_sharded_corpus(
    name: str,
    place: Place,
    held_out: str,
    own: Mapping[str, Place],
    cache: Path,
    work: Callable[[str], Callable[[int, int], None]],
) -> ShardedCorpus:
    """Check the files of a corpus and hold out text; `own` has the places of splits with their own text."""
    sources, passed = scan_sources(place, cache, work(f"checking {place.path}"))
    trained = {Path(source.path).resolve() for source in sources}
    splits, how = _hold_out(sources, held_out, [split for split in SPLITS if split not in own])
    for split, other in own.items():
        found, also = scan_sources(other, cache, work(f"checking {other.path}"))
        passed += also
        twice = next((source for source in found if Path(source.path).resolve() in trained), None)
        if twice is not None:
            raise InputError(f"{other.key}: {twice.path} is in {place.key} too: it must not be trained on")
        splits[split] = [_whole(source) for source in found]
    return ShardedCorpus(name, {split: tuple(splits[split]) for split in SPLITS}, tuple(passed), how)


def _whole(source: Source) -> Piece:
    return Piece(source, 0, source.length)


def _hold_out(sources: list[Source], held_out: str, wanted: list[str]) -> tuple[dict[str, list[Piece]], str]:
    """The pieces in the `wanted` splits, and how they were held out; other splits' shares go to training."""
    if wanted == ["train"]:
        return {"train": [_whole(source) for source in sources]}, "nothing"
    whole = hold_out_whole_files(sources, held_out)
    splits: dict[str, list[Piece]] = {split: [] for split in SPLITS}
    if whole is not None:
        chosen = {source.name: split if split in wanted else "train" for split in SPLITS for source in whole[split]}
        for source in sources:
            splits[chosen[source.name]].append(_whole(source))
        return splits, "whole files"
    for source in sources:
        places = [0, *(cut_source_held_out(source, round(share * source.length)) for share in SHARES), source.length]
        for split, start, stop in zip(SPLITS, places, places[1:], strict=False):
            if start < stop:
                splits[split if split in wanted else "train"].append(Piece(source, start, stop))
    return splits, "the end of every file"


def cut_sharded_corpus(pieces: tuple[Piece, ...], size: int) -> list[tuple[Piece, ...]]:
    """The pieces in groups of about `size` bytes: the shards. A large piece is cut where its tokens stay the same."""
    groups: list[list[Piece]] = [[]]
    full = 0
    for piece in (part for whole in pieces for part in _parts(whole, size)):
        if full >= size:
            groups.append([])
            full = 0
        groups[-1].append(piece)
        full += piece.bytes
    return [tuple(group) for group in groups if group]


def _parts(piece: Piece, size: int) -> Iterator[Piece]:
    """A piece in parts of at least `size` bytes."""
    source = piece.source
    step = max(size * source.length // max(source.text, 1), 1)
    start = piece.start
    while piece.stop - start > step:
        cut = cut_source_for_shard(source, start + step, piece.stop)
        if cut is None:
            break
        yield Piece(source, start, cut, ends=False)
        start = cut
    yield Piece(source, start, piece.stop, piece.ends)
