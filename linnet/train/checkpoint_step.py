"""The step that `--checkpoint last`, `best` or a number stands for."""

import contextlib
from pathlib import Path

from linnet.config import short_config_value
from linnet.errors import InputError
from linnet.storage import CheckpointError, checkpoint_steps, read_checkpoint


def run_checkpoint_step(folder: Path, which: str) -> int | None:
    """The step that "last", "best" or a number stands for; None means the newest valid one."""
    if which == "last":
        return None
    if (folder / "config.json").is_file():
        raise InputError(
            f"--checkpoint is {short_config_value(which)}: {folder} is an exported model, which has no checkpoints"
        )
    if which != "best":
        if not (which.isascii() and which.isdecimal()) or len(which) > 18:
            raise InputError(f"--checkpoint is {short_config_value(which)}: it must be last, best or a step number")
        return int(which)
    for step in reversed(checkpoint_steps(folder / "checkpoints")):
        with contextlib.suppress(CheckpointError):  # loading reports a damaged one
            at = read_checkpoint(folder / f"checkpoints/step-{step}", optimizer=False, model=False).position
            if at.best_step is not None:
                return at.best_step
    raise InputError(f"{folder} has not been evaluated yet: use --checkpoint last")
