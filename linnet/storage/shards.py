"""Sharded checkpoints: each rank writes its part of the tensors, and rank 0 gives them their name.

The folder is that of any checkpoint, but the tensors are in several files per kind, and the manifest says which rows of
which tensor a file holds. Ranks tell each other what they wrote through `share`, which raises on all if one has failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.errors import LinnetError
from linnet.storage.checkpoint import MANIFEST, manifest_bytes, publish_checkpoint
from linnet.storage.files import (
    dump_json_file,
    one_line_file_errors,
    sync_files_of_folder,
    temporary_file_name,
    write_new_file,
)
from linnet.storage.state import SHARDED_FORMAT
from linnet.storage.tensors import pack_tensors

if TYPE_CHECKING:
    from torch import Tensor

Share = Callable[[str], list[str]]


@dataclass(frozen=True)
class Shard:
    """The rows [start, stop) of a tensor of shape `shape`, along its first axis; None if all of it is here."""

    tensor: Tensor
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None


def save_sharded_checkpoint(
    folder: Path, step: int, parts: Mapping[str, Mapping[str, Shard]], state: Mapping[str, Any], rank: int, share: Share
) -> None:
    """Write this rank's `parts` of the model and the optimizer; rank 0 also writes `state` and renames the folder."""
    final = folder / f"step-{step}"
    temporary = temporary_file_name(final) if rank == 0 else None
    with one_line_file_errors("write", final, temporary):
        if temporary is not None:
            if not folder.is_dir():
                folder.mkdir(parents=True, exist_ok=True)
                sync_files_of_folder(folder.parent)
            temporary.mkdir()
        place = Path(share("" if temporary is None else str(temporary))[0])
        own, failure = {}, ""
        try:
            own = _write_parts(place, parts, rank)
        except OSError as error:
            failure = f"cannot write {final}: {error.strerror or error}"
        except Exception as error:  # noqa: BLE001  rank 0 removes the folder only after all have stopped writing
            failure = f"cannot write {final}: {error}"
        notes = [json.loads(text) for text in share(json.dumps({"files": own, "failure": failure}))]
        for note in notes:
            if note["failure"]:
                raise LinnetError(note["failure"])
        written = {name: entry for note in notes for name, entry in note["files"].items()}
        if temporary is not None:
            files = {"state.json": write_new_file(temporary / "state.json", [dump_json_file(state, "state")])}
            manifest = {"format": SHARDED_FORMAT, "step": step, "state": files["state.json"], "shards": written}
            write_new_file(temporary / MANIFEST, [manifest_bytes(manifest)])
            sync_files_of_folder(temporary)
            publish_checkpoint(temporary, final)
            sync_files_of_folder(folder)
        share("")


def _write_parts(place: Path, parts: Mapping[str, Mapping[str, Shard]], rank: int) -> dict[str, Any]:
    """Write the files of one rank; returns their entries in the manifest."""
    own = {}
    for part, shards in parts.items():
        name = f"{part}-{rank:05}.safetensors"
        tensors = {key: shard.tensor for key, shard in shards.items()}
        tied = pack_tensors(tensors)[1]
        content = pack_tensors({key: t.clone() if key in tied else t for key, t in tensors.items()})[0]
        about = {key: {"shape": list(shard.shape), "rows": shard.rows} for key, shard in shards.items()}
        own[name] = {**write_new_file(place / name, content), "tensors": about}
    return own
