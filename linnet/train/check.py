"""The checks of a run that do not need torch, so that a mistake is reported at once."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from linnet.config import RunConfig, load_recipe_config, parse_config, short_config_value
from linnet.errors import InputError, LinnetError
from linnet.models.presets import is_resolved_preset, preset, preset_config
from linnet.registry import TASK
from linnet.storage import check_run_links

UNKNOWN_SIZE = 1 << 30  # placeholder: the vocabulary size depends on the data
LEFTOVER = re.compile(r"\.lock|\.linnet-.*\.tmp")  # left by a process that was killed before it wrote anything else

# What may change during a run, besides paths: the machine, the length, and how often to evaluate, save and log.
FREE = {
    *("steps", "device", "threads", "eval_every", "save_every", "log_every", "tensorboard"),
    *("instruments", "instrument_every", "save_async", "keep_last", "keep_every", "keep_hours", "keep_best"),
}


def check_config(config: RunConfig) -> None:
    """Raise if a run cannot be started with this configuration."""
    planned = TASK[config.task].planned_fields(config.data, config.pretrain)
    preset_config({"vocab_size": UNKNOWN_SIZE, **planned, **config.model})
    check_config_tables(config)


def check_config_tables(config: RunConfig) -> None:
    """Raise if a table other than [model] is wrong; [model] is checked where it is parsed."""
    if config.train.instruments:  # checking an instrument needs its class, and so torch
        from linnet.train.watch import check_watch_instruments

        check_watch_instruments(config.train.instruments)
    how = config.distributed
    if config.train.instruments and how is not None and how.strategy == "fsdp":
        raise InputError("train.instruments needs whole weights: with distributed.strategy 'fsdp' it must be empty")
    if config.train.instruments and how is not None and how.slices > 1:
        raise InputError("train.instruments needs whole sequences: with distributed.mesh.sequence it must be empty")
    if config.train.compile and how is not None and how.slices > 1:
        raise InputError("train.compile is true: what ranks exchange of a sequence breaks its graphs; set it to false")
    if config.pretrain and TASK[config.task].denoising(config.data) is None:
        raise InputError(f"pretrain is true: only the tasks lra/... that classify allow it, not {config.task}")
    if config.train.pretrain_steps and not config.pretrain:
        raise InputError(f"train.pretrain_steps is {config.train.pretrain_steps}: it needs pretrain = true")
    config.data.check()


def check_out_folder(out: Path) -> None:
    """Raise if no run can be started in this folder."""
    try:
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file: a run needs a new or empty folder")
        if out.is_dir() and not all(LEFTOVER.fullmatch(entry.name) for entry in out.iterdir()):
            hint = f"`linnet resume {out}` continues it" if (out / "config.toml").exists() else "name another folder"
            raise InputError(f"{out} is not empty: {hint}")
        parent = next(place for place in (out, *out.absolute().parents) if place.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise LinnetError(f"cannot write {out}: {parent} is not a writable folder")
    except OSError as error:
        raise LinnetError(f"cannot write {out}: {error.strerror}") from None


def check_and_read_config(folder: Path) -> RunConfig:
    """The configuration of a run, with its [model] table unparsed; raises if the folder is not a run."""
    if not (folder / "config.toml").is_file():
        what = "does not exist" if not folder.exists() else "is not a run: it has no config.toml"
        raise InputError(f"{folder} {what}")
    check_run_links(folder)
    config = load_recipe_config(folder / "config.toml")
    check_config_tables(config)
    return config


def settings_to_check(config: RunConfig) -> dict[str, Any]:
    """Every setting that affects the numbers of a run, by dotted key; the model is one table, without its preset."""
    model = {key: value for key, value in config.model.items() if key != "preset"}
    flat: dict[str, Any] = {"task": config.task, "seed": config.seed, "pretrain": config.pretrain, "model": model}
    for section, table in (
        ("data", config.data.without_paths()),
        ("train", config.train.model_dump(mode="json", exclude=FREE)),
    ):
        flat |= {f"{section}.{key}": value for key, value in table.items()}
    return flat


def check_resumed_settings(folder: Path, state: Mapping[str, Any], config: RunConfig) -> None:
    """Raise if the configuration differs from that of the checkpoint with this `state`, naming the first key."""
    then, now = state.get("settings"), settings_to_check(config)
    if not isinstance(then, dict):
        raise LinnetError(
            f"{folder}: its checkpoint was written by an earlier linnet and does not record its settings: "
            "it cannot be resumed; start a new run"
        )
    then = {
        **settings_to_check(parse_config({"task": config.task})),
        **then,
    }  # a key that did not exist yet had its default
    for key in sorted({*then, *now} - {"model"}):
        if then.get(key) != now.get(key):
            raise InputError(
                f"{folder / 'config.toml'}: {key} is {short_config_value(now.get(key))}, but the run was started with "
                f"{short_config_value(then.get(key))}: put it back, or start a new run"
            )


def check_config_difference(begun: RunConfig, planned: RunConfig, also: Iterable[str] = ("steps",)) -> str | None:
    """The first setting in which a started run differs from the planned one, in words; None if there is none.

    `also` names keys of [train] that are compared even though they may change during a run.
    """
    then, now = ({**settings_to_check(c), **c.train.model_dump(include=set(also))} for c in (begun, planned))
    then["model"], now["model"] = begun.model.get("preset"), planned.model.get("preset")
    for key in now:
        if then[key] != now[key]:
            return f"{key} is {short_config_value(now[key])}, not {short_config_value(then[key])}"
    fields = {key: value for key, value in begun.model.items() if key != "options"}  # options follow from the layers
    table = {**fields, **planned.model}
    if "preset" in planned.model and not is_resolved_preset(planned.model):
        found = preset(table.pop("preset"), **table)  # the plan's options change those of the preset
    else:
        found = preset_config(table)
    return None if found == preset_config(begun.model) else "the model differs"


def check_resumed_data(folder: Path, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise if the data are not those of the run, judging by their hashes."""
    for part, digest in now.items():
        if then.get(part) != digest:
            raise LinnetError(f"{folder}: the data of the run have changed ({part}): put them back, or start a new run")
