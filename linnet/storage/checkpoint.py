"""Checkpoints: folders that are written atomically and verified before use.

A checkpoint is a folder `step-N` of four files; its manifest holds the size and SHA-256 of the other three. If several
ranks have written it, there are several files of tensors (`linnet/storage/shards.py`); it is read like any other.
Nothing in it depends on the time, so the same training state always gives the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from linnet.errors import LinnetError
from linnet.storage.files import (
    dump_json_file,
    one_line_file_errors,
    read_file_bytes,
    read_regular_file,
    reading_file,
    remove_file,
    sync_files_of_folder,
    temporary_file_name,
    write_new_file,
)
from linnet.storage.state import (
    FORMAT,
    LARGEST,
    SHARDED_FORMAT,
    Entry,
    Manifest,
    Position,
    Rows,
    ShardedManifest,
    ShardEntry,
    State,
    state_fault,
    unique_state_keys,
)
from linnet.storage.tensors import pack_tensors, unpack_tensors

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
MANIFEST = "manifest.json"


class CheckpointError(LinnetError):
    """A checkpoint is damaged, incomplete, or not a checkpoint; the message names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """The verified content of one `step-N` folder."""

    path: Path
    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]

    @property
    def position(self) -> Position:
        """The progress of the run that wrote this checkpoint."""
        if self.state.get("position") is None:
            raise CheckpointError(f"{self.path / 'state.json'} has no position: a run cannot resume from it")
        return Position(**self.state["position"])


def save_checkpoint(
    folder: str | Path,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write `folder/step-N` under a temporary name, flush it to disk, and only then rename it.

    Replaces an older `step-N`. A failure leaves the old content in place and raises a one-line LinnetError.
    """
    folder = Path(folder)
    final = folder / f"step-{step}"
    temporary = temporary_file_name(final)
    state_json = dump_json_file(state, "state")
    with one_line_file_errors("write", final, temporary):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync_files_of_folder(folder.parent)
        temporary.mkdir()
        files: dict[str, dict[str, object]] = {}
        tied: dict[str, dict[str, str]] = {}
        for part, tensors in (("model", model), ("optimizer", optimizer)):
            parts, tied[part] = pack_tensors(tensors)
            files[f"{part}.safetensors"] = write_new_file(temporary / f"{part}.safetensors", parts)
        files["state.json"] = write_new_file(temporary / "state.json", [state_json])
        manifest = {"format": FORMAT, "step": step, "files": files, "tied": tied}
        write_new_file(temporary / MANIFEST, [manifest_bytes(manifest)])
        sync_files_of_folder(temporary)
        publish_checkpoint(temporary, final)
        sync_files_of_folder(folder)
    return final


def read_checkpoint(
    path: str | Path,
    optimizer: bool = True,
    model: bool = True,
    rows: Mapping[str, tuple[int, int]] | None = None,
) -> Checkpoint:
    """Verify the wanted parts of a `step-N` folder before any tensor is parsed, then read them.

    For tensors that are not wanted, only the file size is checked. Damage, and content that linnet would not have
    written, raises a CheckpointError that names the file. Of a tensor that `rows` names, only these rows [start, stop)
    are returned, and files of ranks that wrote none of them are not read.
    """
    path = Path(path)
    if path.is_symlink():  # what it leads to may change, and would not be removed with the run
        raise CheckpointError(f"{path} is a symbolic link")
    manifest, rows = _read_manifest(path), rows or {}
    parts = [part for part, wanted in (("model", model), ("optimizer", optimizer)) if wanted]
    content = {file: _read_listed(path / file, entry, needed) for file, entry, needed in _listed(manifest, parts, rows)}
    tensors: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}}
    for part in parts:
        if isinstance(manifest, Manifest):
            file = f"{part}.safetensors"
            whole = _unpacked(path / file, content[file], getattr(manifest.tied, part))
            tensors[part] = {name: t[slice(*rows[name])] if name in rows else t for name, t in whole.items()}
        else:
            tensors[part] = _merged(path, manifest.of_part(part), content, rows)
    state = _state(path / "state.json", content["state.json"], manifest.step)
    return Checkpoint(path, manifest.step, tensors["model"], tensors["optimizer"], state)


def newest_checkpoint(
    folder: str | Path,
    warn: Callable[[str], None],
    optimizer: bool = True,
    rows: Mapping[str, tuple[int, int]] | None = None,
    share: Callable[[str], list[str]] = lambda text: [text],
) -> Checkpoint | None:
    """The valid checkpoint of the highest step, or None; warns about each damaged one that it skips.

    Ranks that each read other `rows` tell the others through `share` what is damaged, and all skip it.
    """
    steps: list[int] = json.loads(share(json.dumps(checkpoint_steps(folder)))[0])
    for step in reversed(steps):
        found, damage = None, ""
        try:
            found = read_checkpoint(Path(folder) / f"step-{step}", optimizer, rows=rows)
        except CheckpointError as error:
            damage = str(error)
        damage = next(filter(None, share(damage)), "")
        if not damage:
            return found
        warn(f"{damage}; this checkpoint is skipped")
    return None


def checkpoint_steps(folder: str | Path) -> list[int]:
    """The steps with a checkpoint in `folder`, valid or not, in ascending order."""
    names = [path.name for path in Path(folder).glob("step-*")]
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-(0|[1-9][0-9]*)", name))


def checkpoints_to_keep(
    folder: str | Path, step: int, best: Iterable[int], last: int = 2, every: int = 0, hours: float = 0.0
) -> set[int]:
    """What `prune_checkpoints` should keep after a save at `step`.

    These are the `last` ones up to it, the best, multiples of `every`, and one for every so many `hours`.
    """
    saved = [n for n in checkpoint_steps(folder) if n <= step]
    regular = [n for n in saved if every and n % every == 0]
    return {*saved[-last:], *regular, *best, *(_by_time(Path(folder), saved, 3600 * hours) if hours else ())}


def _by_time(folder: Path, saved: list[int], seconds: float) -> list[int]:
    """The first checkpoint, and each that was written at least so long after the one before it in this list."""
    kept: list[tuple[float, int]] = []
    for step in saved:
        with contextlib.suppress(OSError):  # a damaged one has no time
            written = (folder / f"step-{step}" / MANIFEST).stat().st_mtime
            if not kept or written >= kept[-1][0] + seconds:
                kept.append((written, step))
    return [step for _, step in kept]


def prune_checkpoints(folder: str | Path, keep: set[int]) -> str:
    """Remove the checkpoints of steps not in `keep`; each is renamed first, so none is left half removed.

    Returns the first failure in one line, or an empty string.
    """
    failures = []
    for step in checkpoint_steps(folder):
        if step not in keep:
            path = Path(folder) / f"step-{step}"
            doomed = temporary_file_name(path)
            with one_line_file_errors("remove", path):
                path.rename(doomed)
            failures.append(remove_file(doomed))
    return next(filter(None, failures), "")


def manifest_bytes(content: dict[str, Any]) -> bytes:
    """The only valid bytes of a manifest with this content, including its own SHA-256."""
    own = hashlib.sha256(dump_json_file(content, MANIFEST)).hexdigest()
    return dump_json_file({**content, "sha256": own}, MANIFEST)


def publish_checkpoint(temporary: Path, final: Path) -> None:
    """Rename a finished folder; an older one of that name is set aside, restored on failure, and removed last."""
    aside = final.with_name(f".linnet-{final.name}.old")
    replaces = final.exists()
    if replaces:
        remove_file(aside)
        final.rename(aside)
    try:
        temporary.rename(final)
    except BaseException:
        if replaces:
            aside.rename(final)
        raise
    remove_file(aside)


def _listed(
    manifest: Manifest | ShardedManifest, parts: Sequence[str], rows: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[str, Entry, bool]]:
    """The files of a checkpoint besides its manifest, and whether one has anything that is wanted."""
    if isinstance(manifest, Manifest):
        for name in FILES:
            yield name, getattr(manifest.files, name.split(".")[0]), name.split(".")[0] in (*parts, "state")
        return
    for name, entry in manifest.shards.items():
        yield name, entry, name.split("-")[0] in parts and bool(_needed(entry, rows))
    yield "state.json", manifest.state, True


def _needed(entry: ShardEntry, rows: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """For each tensor of a file that is wanted, the rows of the whole tensor that the file contributes."""
    found = {name: _overlap(piece, rows.get(name)) for name, piece in entry.tensors.items()}
    return {name: (a, b) for name, (a, b) in found.items() if a < b or name not in rows}


def _merged(
    path: Path, shards: Mapping[str, ShardEntry], content: Mapping[str, bytearray], rows: Mapping[str, tuple[int, int]]
) -> dict[str, Tensor]:
    """The tensors that several files hold together, or the wanted rows of those that `rows` names."""
    import torch

    found: dict[str, Tensor] = {}
    for file, entry in shards.items():
        needed = _needed(entry, rows)
        tensors = _unpacked(path / file, content[file], {}) if needed else {}
        forms = {name: list(tensor.shape) for name, tensor in tensors.items()}
        if needed and forms != {name: piece.own_shape for name, piece in entry.tensors.items()}:
            raise CheckpointError(f"{path / file} is whole, but was not written by linnet: its tensors differ")
        for name, (a, b) in needed.items():
            piece = entry.tensors[name]
            if piece.rows is None and name not in rows:
                found[name] = tensors[name]
                continue
            start, stop = rows.get(name, (0, piece.shape[0]))
            if name not in found:
                found[name] = torch.empty(stop - start, *piece.shape[1:], dtype=tensors[name].dtype)
            first = (piece.rows or [0])[0]
            found[name][a - start : b - start] = tensors[name][a - first : b - first]
    return found


def _overlap(piece: Rows, wanted: tuple[int, int] | None) -> tuple[int, int]:
    """The rows of a tensor that a file has and that are wanted (None: all); a single number counts as one row."""
    first, last = piece.rows or (0, piece.shape[0] if piece.shape else 1)
    return (first, last) if wanted is None else (max(first, wanted[0]), min(last, wanted[1]))


def _unpacked(path: Path, content: bytearray, tied: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of a file whose hash is right."""
    try:
        return unpack_tensors(content, tied)
    except LinnetError as error:
        raise CheckpointError(f"{path} is whole, but was not written by linnet: {error}") from error


def _read_manifest(path: Path) -> Manifest | ShardedManifest:
    """The verified manifest of a checkpoint; raises unless the folder has exactly the files that it lists."""
    raw = _read(path / MANIFEST)
    try:
        content = json.loads(raw)
        del content["sha256"]
        whole = raw == manifest_bytes(content)
    except (ValueError, TypeError, LookupError, RecursionError, LinnetError):
        whole = False
    if not whole:
        raise CheckpointError(f"{path / MANIFEST} is damaged")
    try:
        sharded = content.get("format") == SHARDED_FORMAT
        manifest = ShardedManifest(**content) if sharded else Manifest(**content)
    except ValidationError as error:
        raise CheckpointError(
            f"{path / MANIFEST} is whole, but was not written by linnet: {state_fault(error)}"
        ) from error
    if path.name != f"step-{manifest.step}":
        raise CheckpointError(f"{path} is the checkpoint of step {manifest.step} under another name")
    listed = FILES if isinstance(manifest, Manifest) else ("state.json", *manifest.shards)
    for found in sorted(path.iterdir()):
        if found.name not in (MANIFEST, *listed):
            raise CheckpointError(f"{found} does not belong to this checkpoint")
    return manifest


def _state(path: Path, raw: bytearray, step: int) -> dict[str, Any]:
    """The training state; raises unless linnet could have written it and its step is that of the folder."""
    try:
        table = json.loads(raw, object_pairs_hook=unique_state_keys)
        state = State(**table)
    except ValidationError as error:
        raise CheckpointError(f"{path} is whole, but was not written by linnet: {state_fault(error)}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is whole, but was not written by linnet: {error}") from error
    if state.position is not None and state.position.step != step:
        raise CheckpointError(f"{path}: position.step is {state.position.step}, in the manifest it is {step}")
    return dict(table)


def _read_listed(path: Path, entry: Entry, wanted: bool) -> bytearray:
    """A file's content, checked against the size and SHA-256 in the manifest; if not wanted, only the size."""
    try:
        with reading_file(path, links=False) as (descriptor, size):
            if size != entry.size:
                raise CheckpointError(f"{path} is damaged: it has {size} bytes, {entry.size} were written")
            data, digest = read_file_bytes(descriptor, size) if wanted else (bytearray(), entry.sha256)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    if digest != entry.sha256:
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one in the manifest")
    return data


def _read(path: Path) -> bytes:
    """The content of a small file; if it cannot be read, the checkpoint is damaged."""
    try:
        return read_regular_file(path, LARGEST, links=False)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
