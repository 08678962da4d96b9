"""What linnet keeps on disk: files, checkpoints and run folders, safe against kills, full disks and damage."""

from linnet.storage.checkpoint import (
    Checkpoint,
    CheckpointError,
    newest_checkpoint,
    pack_tensors,
    prune,
    read_checkpoint,
    save_checkpoint,
    steps,
    to_keep,
    unpack_tensors,
)
from linnet.storage.files import (
    beside,
    clean,
    dump_json,
    one_line_errors,
    read_json,
    temporary_name,
    write_atomic,
    write_json,
    write_text,
)
from linnet.storage.run import BusyError, MetricsLog, RunLock, read_metrics

__all__ = [
    "BusyError",
    "Checkpoint",
    "CheckpointError",
    "MetricsLog",
    "RunLock",
    "beside",
    "clean",
    "dump_json",
    "newest_checkpoint",
    "one_line_errors",
    "pack_tensors",
    "prune",
    "read_checkpoint",
    "read_json",
    "read_metrics",
    "save_checkpoint",
    "steps",
    "temporary_name",
    "to_keep",
    "unpack_tensors",
    "write_atomic",
    "write_json",
    "write_text",
]
