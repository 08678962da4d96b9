"""The configuration of a new run: settings that the recipe leaves to the task, and absolute paths."""

from typing import Any

from linnet.config import RunConfig
from linnet.registry import TASK


def fresh_config(config: RunConfig) -> RunConfig:
    """The configuration of a new run, including the settings that its recipe leaves to the task."""
    return change_fresh_data(config, TASK[config.task].fresh(config.data))


def absolute_fresh_config(config: RunConfig) -> RunConfig:
    """Make all paths absolute, including those of LINNET_DATA, so that the run can be resumed from any folder.

    Raises if a path is left to LINNET_DATA and that is not set, which `fresh_config` alone does not need.
    """
    found = {name: str(path.absolute()) for name, path in TASK[config.task].places(config.data).items()}
    return change_fresh_data(config, {**config.data.full_paths(), **found})


def change_fresh_data(config: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """The configuration with other values in [data]."""
    return config.model_copy(update={"data": config.data.model_copy(update=changes)})
