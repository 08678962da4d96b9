"""Storage: files, checkpoints and run folders that survive kills, full disks and damage."""

from linnet.storage.cache import DAY, cache_folder
from linnet.storage.checkpoint import (
    Checkpoint,
    CheckpointError,
    newest_checkpoint,
    prune,
    read_checkpoint,
    save_checkpoint,
    steps,
    to_keep,
)
from linnet.storage.files import (
    IDLE,
    beside,
    clean,
    dump_json,
    one_line_errors,
    open_regular,
    read_bytes,
    read_hashed,
    read_json,
    temporary_name,
    write_atomic,
    write_json,
    write_new,
    write_text,
)
from linnet.storage.run import BusyError, MetricsLog, RunLock, check_metrics, clean_finished, read_metrics
from linnet.storage.state import Position
from linnet.storage.tensors import pack_tensors, unpack_tensors

__all__ = [
    "DAY",
    "IDLE",
    "BusyError",
    "Checkpoint",
    "CheckpointError",
    "MetricsLog",
    "Position",
    "RunLock",
    "beside",
    "cache_folder",
    "check_metrics",
    "clean",
    "clean_finished",
    "dump_json",
    "newest_checkpoint",
    "one_line_errors",
    "open_regular",
    "pack_tensors",
    "prune",
    "read_bytes",
    "read_checkpoint",
    "read_hashed",
    "read_json",
    "read_metrics",
    "save_checkpoint",
    "steps",
    "temporary_name",
    "to_keep",
    "unpack_tensors",
    "write_atomic",
    "write_json",
    "write_new",
    "write_text",
]
