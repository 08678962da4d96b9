"""Checkpoints and run folders on disk: written whole or not at all, verified before any of it is used.

A checkpoint is a folder `step-N` of four files; its manifest holds the size and SHA-256 of the other three.
Nothing in it depends on the time, so the same training state always gives the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnet.errors import LinnetError

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


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write a file: its name shows the old content or all of the new, also after a kill or a power cut."""
    path = Path(path)
    temporary = temporary_name(path)
    with one_line_errors("write", path, temporary):
        _write(temporary, data)
        temporary.replace(path)
        _sync_folder(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """`write_atomic` for text, as UTF-8."""
    write_atomic(path, text.encode())


def write_json(path: str | Path, value: object) -> None:
    """`write_atomic` for JSON with sorted keys; NaN and infinity are refused with the name of their field."""
    write_atomic(path, dump_json(value, Path(path).name))


def dump_json(value: object, name: str) -> bytes:
    """The one JSON form of `value`, which is called `name` if it holds what JSON would not give back."""
    _check_plain(value, name)
    return (json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def read_json(path: str | Path) -> Any:
    """The content of a JSON file; a missing or malformed one is a one-line error that names it."""
    with one_line_errors("read", Path(path)):
        data = Path(path).read_bytes()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LinnetError(f"{path} is not valid JSON: {error}") from error


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody else writes to and that `clean` knows."""
    path = path.absolute()  # "." has no name
    return path.with_name(f".linnet-{path.name}-{os.getpid()}-{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def one_line_errors(verb: str, path: Path, temporary: Path | None = None) -> Iterator[None]:
    """A failure of the system becomes one line that names `path`; whatever fails, `temporary` is removed."""
    try:
        yield
    except BaseException as error:
        if temporary is not None:
            _remove(temporary)
        if isinstance(error, OSError):
            raise LinnetError(f"cannot {verb} {path}: {error.strerror or error}") from error
        raise


def clean(folder: str | Path, older_than: float = 0.0) -> None:
    """Remove what killed writers left in `folder`: our temporary names, at least so many seconds old.

    A checkpoint that was set aside for its successor, which never came, gets its name back.
    """
    for path in sorted(Path(folder).glob(".linnet-*.old")):
        final = path.with_name(path.name.removeprefix(".linnet-").removesuffix(".old"))
        if final.exists():
            _remove(path)
        else:
            path.rename(final)
    for path in sorted(Path(folder).glob(".linnet-*.tmp")):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime >= older_than:
                _remove(path)


def _write(path: Path, data: bytes) -> None:
    """A new file with this content, on the disk when the call returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    """The system may take less than it is given, and takes at most 2 GB."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where its file system has such a call."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a file or a folder as far as the system allows; never raises."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _check_plain(value: object, name: str) -> None:
    """Refuse what JSON cannot hold or would change: other types, keys that are no strings, NaN, infinity."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise LinnetError(f"{name}: the key {key!r} is not a string, so JSON would change it")
            _check_plain(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            _check_plain(item, f"{name}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise LinnetError(f"{name} is {value}: only finite numbers are saved")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise LinnetError(f"{name} is of type {type(value).__name__}: JSON has no such value")


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
            _sync_folder(folder.parent)
        temporary.mkdir()
        files: dict[str, dict[str, object]] = {}
        tied: dict[str, dict[str, str]] = {}
        for part, tensors in (("model", model), ("optimizer", optimizer)):
            data, tied[part] = pack_tensors(tensors)
            files[f"{part}.safetensors"] = _write_listed(temporary / f"{part}.safetensors", data)
        files["state.json"] = _write_listed(temporary / "state.json", state_json)
        manifest = {"format": FORMAT, "step": step, "files": files, "tied": tied}
        _write(temporary / MANIFEST, _manifest(manifest))
        _sync_folder(temporary)
        _publish(temporary, final)
        _sync_folder(folder)
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
            _remove(doomed)


def _write_listed(path: Path, data: bytes) -> dict[str, object]:
    """Write a file and return its entry in the manifest."""
    _write(path, data)
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
        _remove(aside)
        final.rename(aside)
    try:
        temporary.rename(final)
    except BaseException:
        if replaces:
            aside.rename(final)
        raise
    _remove(aside)


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


class BusyError(LinnetError):
    """Another process works in the folder."""


class RunLock:
    """`with RunLock(folder):` one process at a time; the lock dies with its owner, however that dies."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / ".lock"

    def __enter__(self) -> RunLock:
        with one_line_errors("lock", self.path.parent):
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        except OSError as error:
            owner = os.pread(self._descriptor, 300, 0).decode(errors="replace").strip() or "another process"
            os.close(self._descriptor)
            if isinstance(error, BlockingIOError):
                raise BusyError(f"cannot lock {self.path.parent}: {owner} is using it") from error
            raise LinnetError(f"cannot lock {self.path.parent}: {error.strerror}") from error
        _held.add(self._descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor in _held:
            _held.remove(self._descriptor)
            os.close(self._descriptor)


_held: set[int] = set()


def _let_go() -> None:
    """A forked child has a copy of the descriptor, with which it would keep the lock of a dead parent."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


class MetricsLog:
    """A file of JSON lines, one record a line, each with its `step`.

    Log all that belongs to a step and call `sync` before the checkpoint of that step is saved: then a run
    that was killed and resumed leaves the same file as one that was not (if its records hold no times).
    """

    def __init__(self, path: str | Path, resume_at: int | None = None) -> None:
        """A new log; with `resume_at`, the old one without torn lines and without records after that step."""
        self.path = Path(path)
        kept = [] if resume_at is None else [r for r in read_metrics(path) if r["step"] <= resume_at]
        write_atomic(path, b"".join(_line(record) for record in kept))
        with one_line_errors("write", self.path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record; a number that is not finite is logged as null."""
        with one_line_errors("write", self.path):
            _write_all(self._descriptor, _line(record))

    def sync(self) -> None:
        """Put all records on the disk."""
        with one_line_errors("write", self.path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Give the file back to the system."""
        os.close(self._descriptor)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The records of a log, in order; none if there is no file, and no line that a kill has torn."""
    if not Path(path).exists():
        return []
    with one_line_errors("read", Path(path)):
        lines = Path(path).read_bytes().split(b"\n")
    records = []
    for line in lines[:-1]:  # what follows the last end of line was never finished
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                records.append(record)
    return records


def _line(record: Mapping[str, Any]) -> bytes:
    """One record as a line of JSON."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return (json.dumps(plain, allow_nan=False) + "\n").encode()
