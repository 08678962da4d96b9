"""Write checkpoints while training continues: the loop waits only until the state is copied.

The copy is written by a thread, in the order that makes checkpoints safe: metrics, files, name, then old ones go. One
checkpoint is written at a time, and a failure ends the training at its next update.
"""

import contextlib
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnet.config import TrainConfig
from linnet.distributed.ranks import Ranks
from linnet.distributed.shards import tensors_to_shard
from linnet.storage import (
    Position,
    checkpoints_to_keep,
    prune_checkpoints,
    save_checkpoint,
    save_sharded_checkpoint,
)
from linnet.train.finite import NonFiniteError, find_not_finite_tensors
from linnet.train.log import RunLog

Tensors = dict[str, Tensor]


class CheckpointSaver:
    """Saves the state of a run in `folder`, in the background if `train.save_async` and if memory allows a copy."""

    def __init__(self, folder: Path, train: TrainConfig, ranks: Ranks | None = None, sharded: bool = False) -> None:
        self.folder, self.train = folder, train
        self.ranks, self.sharded = ranks or Ranks(), sharded
        self._copies: tuple[Tensors, Tensors] = ({}, {})  # kept, so that memory is claimed once
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._warned = False  # whether a warning about a checkpoint that could not be removed was printed

    def __enter__(self) -> "CheckpointSaver":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish the write in progress; its error belongs to an earlier step, so it replaces one of the training."""
        interrupted = kind is not None and not issubclass(kind, Exception)
        with contextlib.suppress(Exception) if interrupted else contextlib.nullcontext():
            self.wait()

    def save(self, weights: Tensors, moments: Tensors, state: dict[str, Any], at: Position, log: RunLog) -> None:
        """Save this state and the records so far; returns when the tensors may change again.

        Of many ranks the first one writes, unless each has a part of the model: then all write, and all wait.
        """
        self.wait()
        state, at = {**state, "position": at.model_dump(), "metrics": log.mark()}, at.model_copy(deep=True)
        if self.sharded:
            with self.ranks.listening():
                self._write(weights, moments, state, at, log)
            return
        if not self.ranks.first:
            return
        if not (self.train.save_async and self._copy(weights, moments)):
            self._write(weights, moments, state, at, log)
            return
        job = (*self._copies, state, at, log)
        thread = threading.Thread(target=self._try_to_write, args=job, name="checkpoint")
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:  # no more threads are allowed
            self._write(*job)

    def check(self) -> None:
        """Raise if the checkpoint in the background has failed; does not wait."""
        if self._error is not None:
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written; raises if that has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _copy(self, weights: Tensors, moments: Tensors) -> bool:
        """Copy the state; False if there is no memory for it."""
        if not self._copies[0]:
            needed = sum(tensor.nbytes for tensor in (*weights.values(), *moments.values()))
            if needed > _free_memory() // 2:
                return False
        try:
            old, new = self._copies, (weights, moments)
            self._copies = (copy_for_saving(new[0], old[0]), copy_for_saving(new[1], old[1]))
        except (RuntimeError, MemoryError):  # torch raises the first
            self._copies = ({}, {})
            return False
        return True

    def _try_to_write(self, *job: Any) -> None:
        try:
            self._write(*job)
        except BaseException as error:  # noqa: BLE001  the loop raises it
            self._error = error

    def _write(self, weights: Tensors, moments: Tensors, state: dict[str, Any], at: Position, log: RunLog) -> None:
        """Write a checkpoint, then remove those that the configuration does not keep."""
        bad = find_not_finite_tensors({**weights, **moments})
        if bad:
            raise NonFiniteError(f"step {at.step}: {bad[0]} is not finite; the checkpoint was not written")
        log.sync()
        if self.sharded:
            own = {"model": tensors_to_shard(weights, self.ranks), "optimizer": tensors_to_shard(moments, self.ranks)}
            save_sharded_checkpoint(self.folder, at.step, own, state, self.ranks.rank, self.ranks.share)
        else:
            save_checkpoint(self.folder, at.step, weights, moments, state)
        if self.ranks.first:
            self._prune(at, log)

    def _prune(self, at: Position, log: RunLog) -> None:
        """Remove the checkpoints that the configuration does not keep."""
        rule = (self.train.keep_last, self.train.keep_every, self.train.keep_hours)
        best = {*at.best_steps, *([] if at.best_step is None else [at.best_step])}  # an earlier linnet had only this
        keep = checkpoints_to_keep(self.folder, at.step, best, *rule)
        failure = prune_checkpoints(self.folder, keep)
        if failure and not self._warned:
            log.screen.warn(f"{failure}; old checkpoints stay until the run is resumed")
        self._warned = self._warned or bool(failure)


def copy_for_saving(tensors: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> Tensors:
    """Copies on the CPU, in the memory of `old` where it fits; tensors that share memory share their copy."""
    copies: Tensors = {}
    places: dict[tuple[object, ...], Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if not (tensor.numel() and place in places):
            kept = old.get(name)
            fits = kept is not None and kept.shape == tensor.shape and kept.dtype == tensor.dtype
            room = kept if fits and kept is not None else torch.empty_like(tensor, device="cpu")
            places[place] = room.copy_(tensor)
        copies[name] = places[place]
    return copies


def _free_memory() -> int:
    """The bytes that processes can still claim; very many if the system does not say."""
    with contextlib.suppress(OSError):
        found = re.search(r"MemAvailable: +([0-9]+) kB", Path("/proc/meminfo").read_text())
        if found:
            return int(found[1]) * 1024
    return 1 << 62
