"""Storage: files, checkpoints and run folders that survive kills, full disks and damage."""

from linnet.storage.cache import DAY, cache_folder
from linnet.storage.checkpoint import (
    Checkpoint,
    CheckpointError,
    checkpoint_steps,
    checkpoints_to_keep,
    newest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    save_checkpoint,
)
from linnet.storage.files import (
    IDLE,
    clean_temporary_files,
    dump_json_file,
    file_beside,
    one_line_file_errors,
    open_regular_file,
    read_file_bytes,
    read_hashed_file,
    read_json_file,
    temporary_file_name,
    write_file_atomic,
    write_json_file,
    write_new_file,
    write_text_file,
)
from linnet.storage.run import BusyError, MetricsLog, RunLock, check_run_metrics, clean_finished_run, read_run_metrics
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
    "cache_folder",
    "check_run_metrics",
    "checkpoint_steps",
    "checkpoints_to_keep",
    "clean_finished_run",
    "clean_temporary_files",
    "dump_json_file",
    "file_beside",
    "newest_checkpoint",
    "one_line_file_errors",
    "open_regular_file",
    "pack_tensors",
    "prune_checkpoints",
    "read_checkpoint",
    "read_file_bytes",
    "read_hashed_file",
    "read_json_file",
    "read_run_metrics",
    "save_checkpoint",
    "temporary_file_name",
    "unpack_tensors",
    "write_file_atomic",
    "write_json_file",
    "write_new_file",
    "write_text_file",
]
