"""Repair a broken run folder: remove leftovers and set damaged checkpoints aside without deleting any."""

from pathlib import Path
from typing import NamedTuple

from linnet.config import read_config_toml
from linnet.errors import InputError, LinnetError
from linnet.storage.checkpoint import CheckpointError, checkpoint_steps, read_checkpoint
from linnet.storage.files import clean_temporary_files, one_line_file_errors, sync_files_of_folder
from linnet.storage.run import RunLock, check_run_links, check_run_metrics

DAMAGED = "damaged"  # the folder for damaged checkpoints, and for logs that no checkpoint is left of
LOGS = ("metrics.jsonl", "timings.jsonl")


class Repaired(NamedTuple):
    """What was removed, what was set aside and why, the steps of the intact checkpoints, and what keeps them unused."""

    removed: list[str]
    damaged: dict[str, str]
    steps: list[int]
    failure: str
    obstacle: str


def repair_run(folder: str | Path) -> Repaired:
    """Remove what killed processes left in a run, and move damaged checkpoints to `damaged/`, in a locked folder."""
    folder = Path(folder)
    if not (folder / "config.toml").is_file():
        what = "does not exist" if not folder.exists() else "is not a run: it has no config.toml"
        raise InputError(f"{folder} {what}")
    check_run_links(folder)
    checkpoints = folder / "checkpoints"
    with RunLock(folder):
        places = (folder, checkpoints)
        before = {path for place in places for path in place.glob(".linnet-*.tmp")}
        failure = clean_temporary_files(folder, shared=True) or clean_temporary_files(checkpoints)
        removed = sorted(str(path.relative_to(folder)) for path in before if not path.exists())
        damaged = {}
        for step in checkpoint_steps(checkpoints):
            path = checkpoints / f"step-{step}"
            try:
                read_checkpoint(path)
            except CheckpointError as error:
                damaged[str(_set_aside(path, folder / DAMAGED).relative_to(folder))] = str(error)
        steps = checkpoint_steps(checkpoints)
        if damaged and not steps:  # a run that starts over writes new ones
            for log in filter(Path.exists, (folder / name for name in LOGS)):
                damaged[str(_set_aside(log, folder / DAMAGED).relative_to(folder))] = "no checkpoint of it is left"
    return Repaired(removed, damaged, steps, failure, _obstacle(folder, steps))


def _obstacle(folder: Path, steps: list[int]) -> str:
    """Why the run cannot continue from its newest checkpoint, or an empty string."""
    try:
        read_config_toml(folder / "config.toml")
        if steps:
            newest = read_checkpoint(folder / f"checkpoints/step-{steps[-1]}", optimizer=False, model=False)
            check_run_metrics(folder / "metrics.jsonl", newest.state.get("metrics"))
    except LinnetError as error:
        return str(error)
    return ""


def _set_aside(path: Path, place: Path) -> Path:
    """Move a part of a run to a folder, under a name that is free there."""
    if place.is_symlink():  # otherwise the checkpoint would be moved out of the run
        raise LinnetError(f"cannot move {path}: {place} is a symbolic link")
    with one_line_file_errors("move", path):
        place.mkdir(exist_ok=True)
        taken = {entry.name for entry in place.iterdir()}
        names = (path.name if number == 0 else f"{path.name}.{number}" for number in range(len(taken) + 1))
        target = place / next(name for name in names if name not in taken)
        path.rename(target)
        sync_files_of_folder(place)
        sync_files_of_folder(path.parent)
    return target
