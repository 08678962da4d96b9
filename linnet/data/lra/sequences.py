"""Labeled token sequences stored in one array, and a cache of such arrays keyed by their origin."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.data.corpora import SPLITS
from linnet.errors import InputError, LinnetError
from linnet.storage import DAY, cache_folder, clean_temporary_files, write_file_atomic

Arrays = dict[str, NDArray[Any]]
FORMAT = "linnet-arrays-1"
GRAIN = 32  # batches are padded to a multiple of it: each width costs a cached oneDNN kernel and a gap in the heap


@dataclass(frozen=True)
class Sequences:
    """Token sequences one after the other: sequence i is `tokens[starts[i]:starts[i + 1]]` and has `labels[i]`."""

    tokens: NDArray[Any]
    starts: NDArray[np.integer[Any]]
    labels: NDArray[np.int64]

    @staticmethod
    def of(rows: Sequence[bytes], labels: Sequence[int]) -> "Sequences":
        """Sequences whose tokens are bytes plus one, so that 0 stays free for padding."""
        lengths = np.array([len(row) for row in rows], np.int64)
        tokens = np.frombuffer(b"".join(rows), np.uint8).astype(np.uint16) + np.uint16(1)
        return Sequences(tokens, np.concatenate([[0], np.cumsum(lengths)]), np.array(labels, np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def split(self, share: float) -> dict[str, "Sequences"]:
        """Train, valid and test, in this order; the last two each get a `share` of all, and at least one."""
        count, held = len(self), max(round(share * len(self)), 1)
        if count < 3:
            raise InputError(f"data.count is {count}: there must be at least 3 samples, one for each split")
        cuts = (0, count - 2 * held, count - held, count)
        return {name: self._part(*cuts[i : i + 2]) for i, name in enumerate(SPLITS)}

    def _part(self, first: int, end: int) -> "Sequences":
        a, b = self.starts[first], self.starts[end]
        return Sequences(self.tokens[a:b], self.starts[first : end + 1] - a, self.labels[first:end])

    def rows(self, samples: NDArray[np.int64], most: int = 0) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """These sequences as (B,N), padded with 0 to the longest, and the mask of real tokens.

        With `most`, an upper bound on the lengths, N takes only a few values: see `even_sequence_width`.
        """
        begin, length = self.starts[samples], self.starts[samples + 1] - self.starts[samples]
        longest = max(int(length.max()), 1)
        column = np.arange(even_sequence_width(longest, most) if most else longest)
        real = column < length[:, None]
        places = np.minimum(begin[:, None] + column, len(self.tokens) - 1)
        return np.where(real, self.tokens[places], 0).astype(np.int64), real

    def arrays(self, prefix: str) -> Arrays:
        """The arrays to cache, with a prefix before their names."""
        return {f"{prefix}.{name}": getattr(self, name) for name in ("tokens", "starts", "labels")}

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any]], prefix: str) -> "Sequences":
        """The inverse of `arrays`."""
        return Sequences(*(arrays[f"{prefix}.{name}"] for name in ("tokens", "starts", "labels")))

    def check(self, what: str, classes: int) -> None:
        """Raise if there are no sequences, if one is empty, or if a label is not a class."""
        if not len(self):
            raise InputError(f"{what} is empty: there is nothing to learn from")
        empty = np.flatnonzero(np.diff(self.starts) == 0)
        if len(empty):
            raise InputError(f"{what}: sequence {empty[0] + 1} is empty")
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= classes))
        if len(wrong):
            label = self.labels[wrong[0]]
            raise InputError(f"{what}: the label of sequence {wrong[0] + 1} is {label}: it must be 0 to {classes - 1}")


def even_sequence_width(width: int, most: int) -> int:
    """`width` rounded up to a multiple of GRAIN, but at most `most`."""
    return min(-(-width // GRAIN) * GRAIN, most)


def sequence_letter(token: int) -> str:
    """The character of a token of `Sequences.of`; a byte that is not a character appears as `\\xff`."""
    return bytes([token - 1]).decode(errors="backslashreplace")


def sequence_arrays_sha256(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of arrays: names, types, shapes and content."""
    whole = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        whole.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        whole.update(array.data)
    return whole.hexdigest()


def cached_sequences(about: str, build: Callable[[], Arrays], cache: Path | None) -> Arrays:
    """The arrays that `build` returns, cached in the folder `cache` under `about`, which must describe them fully.

    If the folder is not writable, nothing is cached.
    """
    folder = cache_folder() if cache is None else cache
    path = folder / f"{hashlib.sha256(f'{FORMAT} {about}'.encode()).hexdigest()}.safetensors"
    arrays = load_sequence_arrays(path, about)
    if arrays is None:
        arrays = build()
        with contextlib.suppress(OSError, LinnetError):
            folder.mkdir(parents=True, exist_ok=True)
            save_sequence_arrays(path, about, arrays)
            clean_temporary_files(folder, older_than=DAY)  # files that a killed process left
    return arrays


def save_sequence_arrays(path: Path, about: str, arrays: Arrays) -> None:
    """Write arrays and their description to a file, atomically."""
    from safetensors.numpy import save

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_file_atomic(
        path, _in_order(save(whole, {"about": f"{FORMAT} {about}", "sha256": sequence_arrays_sha256(whole)}))
    )


def _in_order(data: bytes) -> bytes:
    """Sort the metadata of a file: safetensors does not, so files of the same arrays would differ."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return data[:8] + text.ljust(size) + data[8 + size :]


def load_sequence_arrays(path: Path, about: str) -> Arrays | None:
    """Arrays that `save_sequence_arrays` wrote; None if the file is missing, damaged or has another description."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            said = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is not a dict
    except (OSError, SafetensorError):
        return None
    return (
        arrays
        if said.get("about") == f"{FORMAT} {about}" and said.get("sha256") == sequence_arrays_sha256(arrays)
        else None
    )


def sequence_file_sha256(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
