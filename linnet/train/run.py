"""A run from outside: checked, started, resumed and evaluated, in a folder that holds all of it."""

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from linnet import __version__
from linnet.config import RunConfig, dump_config
from linnet.data.corpora import SPLITS
from linnet.errors import InputError, LinnetError, unknown
from linnet.models.backbone import Model
from linnet.models.loading import load_model
from linnet.models.presets import model_config
from linnet.registry import TASK
from linnet.storage import RunLock, clean, newest_checkpoint, read_metrics, steps, write_json, write_text
from linnet.tasks.base import Task
from linnet.train.check import check_config, check_out, run_config
from linnet.train.log import RunLog, Screen, tensorboard
from linnet.train.loop import Trainer, pick_device, precision, seed_of


class Outcome(NamedTuple):
    """What a run came to: `signal` is the one that stopped it, 0 if it went to the end."""

    folder: Path
    step: int
    steps: int
    tokens: int
    parameters: int
    signal: int
    seconds: float
    valid: dict[str, Any] | None  # the last evaluation


def start_run(config: RunConfig, out: str | Path, screen: Screen) -> Outcome:
    """Train from the beginning, in the new or empty folder `out`."""
    out = Path(out)
    check_config(config)
    check_out(out)
    _check_machine(config)
    task, config = prepare(_absolute(config), None, screen)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LinnetError(f"cannot write {out}: {error.strerror}") from None
    with RunLock(out):
        check_out(out)  # another process may have been faster
        write_text(out / "config.toml", dump_config(config))
        task.save(out)
        write_json(out / "environment.json", environment(config, task))
        return _train(config, task, out, screen)


def resume_run(folder: str | Path, screen: Screen) -> Outcome:
    """Go on from the newest valid checkpoint, or from the beginning if there is none yet."""
    folder = Path(folder)
    config = run_config(folder)
    _check_machine(config)
    with RunLock(folder):
        clean(folder)
        clean(folder / "checkpoints")
        task, config = prepare(config, folder, screen)
        if not (folder / "environment.json").exists():  # it was stopped before its first step
            task.save(folder)
            write_json(folder / "environment.json", environment(config, task))
        return _train(config, task, folder, screen)


def evaluate_run(folder: str | Path, split: str, screen: Screen, checkpoint: str = "last") -> dict[str, Any]:
    """The metrics of one of a run's checkpoints on a whole split."""
    folder = Path(folder)
    config = run_config(folder)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    model = load_model(folder, checkpoint_step(folder, checkpoint), screen.warn)
    task, config = prepare(config, folder, screen)
    device = pick_device(config.train)
    model = model.to(device)
    try:
        with precision(config.train, device):
            metrics = task.evaluate(model, split, 0, device, screen.work(f"evaluating on the {split} split"))
    finally:
        screen.close()
    assert metrics is not None  # nothing stops it in between
    return metrics


def dry_run(config: RunConfig, screen: Screen) -> dict[str, Any]:
    """Check everything that can be checked without training, and write nothing: what would be trained on what."""
    check_config(config)
    _check_machine(config)
    with TemporaryDirectory() as cache:
        task, config = prepare(config, None, screen, Path(cache))
        samples = {split: task.count(split) for split in SPLITS}
    train = config.train
    return {
        "config": config.model_dump(mode="json", exclude_none=True),
        "parameters": count_parameters(_on_meta(config)),
        "samples": samples,
        "tokens": train.steps * train.batch * train.accumulate * config.data.context,
    }


def prepare(
    config: RunConfig, folder: Path | None, screen: Screen, cache: Path | None = None
) -> tuple[Task, RunConfig]:
    """The task with its data, and the configuration with every field of the model."""
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    try:
        task: Task = TASK[config.task](config, cache=cache, folder=folder, work=screen.work)
    finally:
        screen.close()
    model = model_config({**task.model_fields(), **config.model})
    task.check_model(model)
    chosen = {"preset": config.model["preset"]} if "preset" in config.model else {}
    table = {**chosen, **model.model_dump(mode="json", exclude_none=True)}
    config = config.model_copy(update={"model": table})
    _on_meta(config)
    return task, config


def checkpoint_step(folder: Path, which: str) -> int | None:
    """The step that "last" (None: the newest valid one), "best" or a number means."""
    if which == "last":
        return None
    if which != "best":
        if not which.isdecimal():
            raise InputError(f"--checkpoint is {which!r}: it must be last, best or the number of a step")
        return int(which)
    found = [record for record in read_metrics(folder / "metrics.jsonl") if record.get("split") == "valid"]
    if not found:
        raise InputError(f"{folder} has not been evaluated yet: --checkpoint last is allowed")
    return int(min(found, key=lambda record: record["loss"])["step"])


def _absolute(config: RunConfig) -> RunConfig:
    """Paths from the root, so that the run can go on from anywhere."""
    paths = {name: getattr(config.data, name) for name in ("path", "tokenizer_path", "cache")}
    full = {name: str(Path(path).absolute()) for name, path in paths.items() if path is not None}
    return config.model_copy(update={"data": config.data.model_copy(update=full)})


def _on_meta(config: RunConfig) -> Model:
    """The model without its numbers: a mechanism refuses here what it cannot do."""
    with torch.device("meta"):
        return Model(model_config(config.model))


def _check_machine(config: RunConfig) -> None:
    """The one-line error for what is configured and not here."""
    pick_device(config.train)
    if config.train.tensorboard:
        tensorboard()


def _train(config: RunConfig, task: Task, folder: Path, screen: Screen) -> Outcome:
    """Train in a locked folder from where it stands."""
    start = time.perf_counter()
    checkpoint = newest_checkpoint(folder / "checkpoints", screen.warn)
    if checkpoint is None and steps(folder / "checkpoints"):
        raise LinnetError(f"{folder}: no checkpoint is whole; start anew in another folder")
    state = {"versions": versions(), "threads": torch.get_num_threads(), "data": task.fingerprint()}
    torch.manual_seed(seed_of(config.seed, -1))
    model = Model(model_config(config.model))
    at = 0 if checkpoint is None else checkpoint.step
    trainer = Trainer(config, task, model, folder, state)
    if checkpoint is not None:
        _compare(checkpoint.state, state, screen)
        trainer.restore(checkpoint)
        done = " and finished" if at >= config.train.steps else ""
        screen.say(f"{folder} is at step {at} of {config.train.steps}{done}")
    else:
        screen.say(f"{folder}: {count_parameters(model):,} parameters on {trainer.device}")
    log = RunLog(folder, config.train, at, screen)
    try:
        stop = trainer.run(log)
    finally:
        log.close()
    evaluations = [record for record in read_metrics(folder / "metrics.jsonl") if record.get("split") == "valid"]
    return Outcome(
        folder=folder,
        step=trainer.at.step,
        steps=config.train.steps,
        tokens=trainer.at.tokens,
        parameters=count_parameters(model),
        signal=0 if trainer.finished else stop.signal,
        seconds=round(time.perf_counter() - start, 3),
        valid=evaluations[-1] if evaluations else None,
    )


def _compare(before: Mapping[str, Any], now: Mapping[str, Any], screen: Screen) -> None:
    """Refuse other data than the run began with; warn where its bits may come out differently."""
    for part, digest in now["data"].items():
        if before["data"].get(part) != digest:
            raise LinnetError(f"the data of this run have changed ({part}): it cannot go on; start a new one")
    then = before["versions"]
    differing = [f"{k} {then.get(k)} then, {v} now" for k, v in now["versions"].items() if then.get(k) != v]
    if before["threads"] != now["threads"]:
        differing.append(f"threads {before['threads']} then, {now['threads']} now")
    if differing:
        screen.warn(f"the last bits may differ from an uninterrupted run: {'; '.join(differing)}")


def versions() -> dict[str, str]:
    """What the bits of a run depend on besides its configuration and data."""
    return {
        "linnet": __version__,
        "torch": torch.__version__,
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def environment(config: RunConfig, task: Task) -> dict[str, Any]:
    """Where and on what a run was begun."""
    return {
        **versions(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(pick_device(config.train)),
        "data": task.fingerprint(),
        "samples": {split: task.count(split) for split in SPLITS},
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def count_parameters(model: Model) -> int:
    """Trainable numbers, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
