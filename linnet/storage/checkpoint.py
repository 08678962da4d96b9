"""Checkpoints: folders that are written whole or not at all, and verified before any of it is used.

A checkpoint is a folder `step-N` of four files; its manifest holds the size and SHA-256 of the other three.
Nothing in it depends on the time, so the same training state always gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.errors import LinnetError
from linnet.storage.files import dump_json, one_line_errors, remove, sync_folder, temporary_name, write_new

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "linnet-checkpoint-1"
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
MANIFEST = "manifest.json"


class CheckpointError(LinnetError):
    """A checkpoint is damaged, incomplete, or not a checkpoint; the message names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """What one `step-N` folder holds, after verification."""

    path: Path
    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def pack_tensors(tensors: Mapping[str, Tensor]) -> tuple[bytes, dict[str, str]]:
    """Tensors as safetensors bytes, and the ties: a name whose tensor is stored under another -> that one."""
    from safetensors.torch import save

    stored: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    places: dict[tuple[object, ...], str] = {}
    memories: set[int] = set()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and place in places:
            tied[name] = places[place]
            continue
        places[place] = name
        copy = tensor.cpu().contiguous()
        memory = copy.untyped_storage()
        if memory.nbytes() != copy.nbytes or memory.data_ptr() in memories:
            copy = copy.clone()  # safetensors refuses a view of a larger tensor
        memories.add(copy.untyped_storage().data_ptr())
        stored[name] = copy
    return save(stored), tied


def unpack_tensors(data: bytes, tied: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of `pack_tensors`; tied names get one and the same tensor. Anything else is a LinnetError."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
        return tensors | {name: tensors[stored] for name, stored in tied.items()}
    except (SafetensorError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise LinnetError(f"these are not tensors that linnet wrote: {type(error).__name__}: {error}") from error


def save_checkpoint(
    folder: str | Path,
    step: int,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write `folder/step-N` under a temporary name, put it on the disk, and only then give it its name.

    An older `step-N` is replaced. A failure leaves what was there before, and becomes a one-line LinnetError.
    """
    folder = Path(folder)
    final = folder / f"step-{step}"
    temporary = temporary_name(final)
    state_json = dump_json(state, "state")
    with one_line_errors("write", final, temporary):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)
        temporary.mkdir()
        files: dict[str, dict[str, object]] = {}
        tied: dict[str, dict[str, str]] = {}
        for part, tensors in (("model", model), ("optimizer", optimizer)):
            data, tied[part] = pack_tensors(tensors)
            files[f"{part}.safetensors"] = _write_listed(temporary / f"{part}.safetensors", data)
        files["state.json"] = _write_listed(temporary / "state.json", state_json)
        manifest = {"format": FORMAT, "step": step, "files": files, "tied": tied}
        write_new(temporary / MANIFEST, _manifest(manifest))
        sync_folder(temporary)
        _publish(temporary, final)
        sync_folder(folder)
    return final


def read_checkpoint(path: str | Path, optimizer: bool = True) -> Checkpoint:
    """Verify a `step-N` folder, all of it and before any tensor is parsed, then read it.

    Without `optimizer` those tensors are verified only. Damage is a CheckpointError that names the file.
    """
    path = Path(path)
    manifest = _read_manifest(path)
    content = {name: _read_listed(path / name, manifest["files"][name]) for name in FILES}
    tensors: dict[str, dict[str, Tensor]] = {"optimizer": {}}
    try:
        for part in ("model", "optimizer") if optimizer else ("model",):
            tensors[part] = unpack_tensors(content[f"{part}.safetensors"], manifest["tied"][part])
        state = json.loads(content["state.json"])
    except (LinnetError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise CheckpointError(f"{path} is whole, but was not written by linnet: {error}") from error
    return Checkpoint(path, manifest["step"], tensors["model"], tensors["optimizer"], state)


def newest_checkpoint(folder: str | Path, warn: Callable[[str], None], optimizer: bool = True) -> Checkpoint | None:
    """The valid checkpoint of the highest step, or None; `warn` is told of each damaged one passed over."""
    for step in reversed(steps(folder)):
        try:
            return read_checkpoint(Path(folder) / f"step-{step}", optimizer)
        except CheckpointError as error:
            warn(f"{error}; this checkpoint is passed over")
    return None


def steps(folder: str | Path) -> list[int]:
    """The steps of which `folder` has a checkpoint, valid or not, in ascending order."""
    names = [path.name for path in Path(folder).glob("step-*")]
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-(0|[1-9][0-9]*)", name))


def to_keep(folder: str | Path, step: int, best: int | None) -> set[int]:
    """What `prune` should keep after a save at `step`: that one, the one before it, and the best."""
    last_two = [n for n in steps(folder) if n <= step][-2:]
    return {*last_two, *([] if best is None else [best])}


def prune(folder: str | Path, keep: set[int]) -> None:
    """Remove the checkpoints of other steps than `keep`; each loses its name first, so none is half gone."""
    for step in steps(folder):
        if step not in keep:
            path = Path(folder) / f"step-{step}"
            doomed = temporary_name(path)
            with one_line_errors("remove", path):
                path.rename(doomed)
            remove(doomed)


def _write_listed(path: Path, data: bytes) -> dict[str, object]:
    """Write a file and return its entry in the manifest."""
    write_new(path, data)
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _manifest(content: dict[str, Any]) -> bytes:
    """The only bytes that a manifest of this content can have, its own SHA-256 among them."""
    own = hashlib.sha256(dump_json(content, MANIFEST)).hexdigest()
    return dump_json({**content, "sha256": own}, MANIFEST)


def _publish(temporary: Path, final: Path) -> None:
    """Give a finished folder its name; one that had it is set aside, restored on failure, removed at last."""
    aside = final.with_name(f".linnet-{final.name}.old")
    replaces = final.exists()
    if replaces:
        remove(aside)
        final.rename(aside)
    try:
        temporary.rename(final)
    except BaseException:
        if replaces:
            aside.rename(final)
        raise
    remove(aside)


def _read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, proven whole, once the folder has exactly the files that it lists."""
    raw = _read(path / MANIFEST)
    try:
        manifest = json.loads(raw)
        del manifest["sha256"]
        whole = raw == _manifest(manifest) and manifest["format"] == FORMAT
        whole = whole and set(manifest["files"]) == set(FILES)
    except (ValueError, TypeError, LookupError, RecursionError, LinnetError):
        whole = False
    if not whole:
        raise CheckpointError(f"{path / MANIFEST} is damaged")
    if path.name != f"step-{manifest['step']}":
        raise CheckpointError(f"{path} is the checkpoint of step {manifest['step']} under another name")
    for found in sorted(path.iterdir()):
        if found.name not in (MANIFEST, *FILES):
            raise CheckpointError(f"{found} does not belong to this checkpoint")
    return dict(manifest)


def _read_listed(path: Path, entry: Mapping[str, object]) -> bytes:
    """A file's content, once its size and SHA-256 are those of the manifest."""
    data = _read(path)
    if len(data) != entry["size"]:
        raise CheckpointError(f"{path} is damaged: it has {len(data)} bytes, {entry['size']} were written")
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not that of what was written")
    return data


def _read(path: Path) -> bytes:
    """A file's content; if it cannot be had, the checkpoint is damaged."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
