"""What can be said about a run before torch is imported, so that a mistake is told within a moment."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from linnet.config import DataConfig, RunConfig, load_recipe, parse_config, short
from linnet.errors import InputError, LinnetError, unknown
from linnet.models.presets import model_config
from linnet.registry import TASK

FEWEST = {"bpe": 261, "word": 5}  # tokens: four or five that are no text, and each byte
UNKNOWN_SIZE = 1 << 30  # stands for the vocabulary, which the data decide
LEFTOVER = re.compile(r"\.lock|\.linnet-.*\.tmp")  # of a process that was killed before it had written anything

# What may change while a run goes on: places, the machine, the length, and how often to evaluate, save and tell.
FREE = {
    "data": {"path", "tokenizer_path", "cache"},
    "train": {
        *("steps", "device", "threads", "eval_every", "save_every", "log_every", "tensorboard"),
        *("instruments", "instrument_every"),
    },
}


def check_config(config: RunConfig) -> None:
    """The one-line error for a task or a model that does not exist."""
    if config.task not in TASK:
        raise unknown("task", config.task, TASK.names())
    model_config({"vocab_size": UNKNOWN_SIZE, **config.model})
    if config.train.instruments:  # these are known by what they can do, which takes torch
        from linnet.train.watch import check_instruments

        check_instruments(config.train.instruments)
    data = config.data
    if config.pretrain and getattr(data, "objective", None) != "classify":
        raise InputError(f"pretrain is true: only a task lra/... that classifies has it, not this {config.task}")
    if config.train.pretrain_steps and not config.pretrain:
        raise InputError(f"train.pretrain_steps is {config.train.pretrain_steps}: it goes with pretrain = true only")
    if not isinstance(data, DataConfig):
        return  # no text
    if data.tokenizer in ("bytes", "gpt2") and data.vocab_size is not None:
        raise InputError(f"data.vocab_size is {data.vocab_size}: the tokenizer {data.tokenizer!r} has its own size")
    if data.corpus == "stdlib" and data.path is not None:
        raise InputError(f"data.path is {short(data.path)}: data.corpus 'stdlib' has none; 'text' reads your own")
    if data.tokenizer != "gpt2" and data.tokenizer_path is not None:
        raise InputError(f"data.tokenizer_path is {short(data.tokenizer_path)}: only data.tokenizer 'gpt2' reads files")
    fewest = FEWEST.get(data.tokenizer, 0)
    if data.vocab_size is not None and data.vocab_size < fewest:
        name = data.tokenizer
        raise InputError(f"data.vocab_size is {data.vocab_size}: the tokenizer {name!r} needs at least {fewest}")
    if data.corpus == "text" and data.path is None:
        raise InputError("data.path is missing: name your text, as in --set data.path=my.txt")


def check_out(out: Path) -> None:
    """The one-line error for a place where no run can be begun."""
    try:
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file: a run needs a new or empty folder")
        if out.is_dir() and not all(LEFTOVER.fullmatch(entry.name) for entry in out.iterdir()):
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


def settings(config: RunConfig) -> dict[str, Any]:
    """All that decides the numbers of a run, by dotted key; the model is one table, without the name of its preset."""
    model = {key: value for key, value in config.model.items() if key != "preset"}
    flat: dict[str, Any] = {"task": config.task, "seed": config.seed, "pretrain": config.pretrain, "model": model}
    for section, free in FREE.items():
        table = getattr(config, section).model_dump(mode="json", exclude=free)
        flat |= {f"{section}.{key}": value for key, value in table.items()}
    return flat


def check_settings(folder: Path, state: Mapping[str, Any], config: RunConfig) -> None:
    """Refuse a configuration with which the checkpoint of this `state` was not made; the first such key is named."""
    then, now = state.get("settings"), settings(config)
    if not isinstance(then, dict):
        raise LinnetError(
            f"{folder}: its checkpoint is of an earlier linnet and does not hold the settings that it was made with: "
            "it cannot go on; start a new run"
        )
    then = {**settings(parse_config({"task": config.task})), **then}  # a key that there was not yet had its default
    for key in sorted({*then, *now} - {"model"}):
        if then.get(key) != now.get(key):
            raise InputError(
                f"{folder / 'config.toml'}: {key} is {short(now.get(key))}, but the run was begun with "
                f"{short(then.get(key))}: put it back, or start a new run"
            )


def difference(begun: RunConfig, planned: RunConfig, also: Iterable[str] = ("steps",)) -> str | None:
    """In which setting a run has begun otherwise than it is planned now, in words; None: in none.

    `also` are keys of [train] to compare that may change while a run goes on.
    """
    then, now = ({**settings(c), **c.train.model_dump(include=set(also))} for c in (begun, planned))
    then["model"], now["model"] = begun.model.get("preset"), planned.model.get("preset")
    for key in now:
        if then[key] != now[key]:
            return f"{key} is {short(now[key])}, not {short(then[key])}"
    same = model_config({**begun.model, **planned.model}) == model_config(begun.model)
    return None if same else "the model is another"


def check_data(folder: Path, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse other data than those of the run, by the hashes of their parts."""
    for part, digest in now.items():
        if then.get(part) != digest:
            raise LinnetError(f"{folder}: the data of the run have changed ({part}): put them back, or start a new run")
