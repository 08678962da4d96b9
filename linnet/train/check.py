"""What can be said about a run before torch is imported, so that a mistake is told within a moment."""

import os
from pathlib import Path

from linnet.config import RunConfig, load_recipe
from linnet.errors import InputError, LinnetError, unknown
from linnet.models.presets import model_config
from linnet.registry import TASK

UNKNOWN_SIZE = 1 << 30  # stands for the vocabulary, which the data decide


def check_config(config: RunConfig) -> None:
    """The one-line error for a task or a model that does not exist."""
    if config.task not in TASK:
        raise unknown("task", config.task, TASK.names())
    model_config({"vocab_size": UNKNOWN_SIZE, **config.model})
    data = config.data
    if data.tokenizer in ("bytes", "gpt2") and data.vocab_size is not None:
        raise InputError(f"data.vocab_size is {data.vocab_size}: the tokenizer {data.tokenizer!r} has its own size")
    if data.corpus == "text" and data.path is None:
        raise InputError("data.path is missing: name your text, as in --set data.path=my.txt")


def check_out(out: Path) -> None:
    """The one-line error for a place where no run can be begun."""
    try:
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file: a run needs a new or empty folder")
        if out.is_dir() and any(entry.name != ".lock" for entry in out.iterdir()):
            hint = f"`linnet resume {out}` goes on with it" if (out / "config.toml").exists() else "name another"
            raise InputError(f"{out} is not empty: {hint}")
        parent = next(place for place in (out, *out.absolute().parents) if place.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise LinnetError(f"cannot write {out}: {parent} is not a folder that may be written to")
    except OSError as error:
        raise LinnetError(f"cannot write {out}: {error.strerror}") from None


def run_config(folder: Path) -> RunConfig:
    """The configuration of a run; a folder that is no run is a one-line error."""
    if not (folder / "config.toml").is_file():
        what = "does not exist" if not folder.exists() else "is not a run: it has no config.toml"
        raise InputError(f"{folder} {what}")
    config = load_recipe(folder / "config.toml")
    check_config(config)
    return config
