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
from torch.overrides import TorchFunctionMode

from linnet import __version__
from linnet.config import RunConfig, dump_config, short
from linnet.data.corpora import SPLITS
from linnet.errors import InputError, LinnetError, unknown
from linnet.models.backbone import Model
from linnet.models.loading import check_saved, load_run, load_weights
from linnet.models.presets import model_config
from linnet.registry import TASK
from linnet.screen import Screen
from linnet.storage import (
    CheckpointError,
    RunLock,
    clean,
    newest_checkpoint,
    read_checkpoint,
    read_metrics,
    steps,
    write_json,
    write_text,
)
from linnet.tasks.base import Task
from linnet.train.check import check_config, check_data, check_out, check_settings, difference, run_config, settings
from linnet.train.log import RunLog, tensorboard
from linnet.train.loop import Position, Trainer, pick_device, precision, seed_of

FEW = 10  # generated samples of a dry run


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
    pretraining: bool = False  # it was stopped there: all of this is about that part


def start_run(config: RunConfig, out: str | Path, screen: Screen) -> Outcome:
    """Train from the beginning, in the new or empty folder `out`."""
    out = Path(out)
    check_config(config)
    check_out(out)
    _check_machine(config)
    task, config = prepare(_absolute(config), None, screen)
    model = _new_model(config)  # first, since it may be too large for the memory
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LinnetError(f"cannot write {out}: {error.strerror}") from None
    with RunLock(out):
        check_out(out)  # another process may have been faster
        clean(out)
        write_text(out / "config.toml", dump_config(config))
        task.save(out)
        write_json(out / "environment.json", environment(config, task))
        return _train(config, task, model, out, screen)


def resume_run(folder: str | Path, screen: Screen) -> Outcome:
    """Go on from the newest valid checkpoint, or from the beginning if there is none; a finished run is only read."""
    folder = Path(folder)
    config = run_config(folder)
    done = _finished(folder, config, screen)
    if done is not None:
        return done
    _check_machine(config)
    with RunLock(folder):
        clean(folder)
        clean(folder / "checkpoints")
        task, config = prepare(config, folder, screen)
        if not steps(folder / "checkpoints") or not (folder / "environment.json").exists():  # it begins anew
            task.save(folder)
            write_json(folder / "environment.json", environment(config, task))
        return _train(config, task, _new_model(config), folder, screen)


def evaluate_run(folder: str | Path, split: str, screen: Screen, checkpoint: str = "last") -> dict[str, Any]:
    """The metrics of one of a run's checkpoints on a whole split."""
    folder = Path(folder)
    config = run_config(folder)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    model, state = load_run(folder, checkpoint_step(folder, checkpoint), screen.warn)
    if "settings" in state:
        check_settings(folder, state, config)
    task, config = prepare(config, folder, screen)
    check_data(folder, state.get("data", {}), task.fingerprint())
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
    """Check everything that can be checked without training, and write nothing: what would be trained on what.

    Of data that are yet to be generated, which may take long, a few samples stand for all.
    """
    check_config(config)
    _check_machine(config)
    made, data, train = TASK[config.task].generated(config.data), config.data, config.train
    few = data.model_copy(update={"count": min(FEW, sum(made.values()))}) if made else data
    with TemporaryDirectory() as cache:
        task, config = prepare(config.model_copy(update={"data": few}), None, screen, Path(cache))
        samples = made or {split: task.count(split) for split in SPLITS}
    drawn = (train.steps + pretrain_length(config)) * train.batch * train.accumulate
    return {
        "config": config.model_copy(update={"data": data}).model_dump(mode="json", exclude_none=True),
        "parameters": count_parameters(_on_meta(config)),
        "samples": samples,
        "drawn": drawn,
        "tokens": drawn * data.context,
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
    if (folder / "config.json").is_file():
        raise InputError(f"--checkpoint is {short(which)}: {folder} is an exported model, which has no checkpoints")
    if which != "best":
        if not (which.isascii() and which.isdecimal()) or len(which) > 18:
            raise InputError(f"--checkpoint is {short(which)}: it must be last, best or the number of a step")
        return int(which)
    found = _evaluations(folder)
    if not found:
        raise InputError(f"{folder} has not been evaluated yet: --checkpoint last is allowed")
    for record in found:
        step, loss = record["step"], record.get("loss")
        if not isinstance(loss, int | float):
            raise LinnetError(f"{folder / 'metrics.jsonl'} is damaged: the loss at step {step} is {short(loss)}")
    return int(min(found, key=TASK[run_config(folder).task].rank)["step"])


def _evaluations(folder: Path) -> list[dict[str, Any]]:
    """The records on the validation split."""
    return [record for record in read_metrics(folder / "metrics.jsonl") if record.get("split") == "valid"]


def _absolute(config: RunConfig) -> RunConfig:
    """Paths from the root, those of LINNET_DATA too, so that the run can go on from anywhere."""
    paths: dict[str, Any] = {name: getattr(config.data, name, None) for name in ("path", "tokenizer_path", "cache")}
    paths |= TASK[config.task].places(config.data)
    full = {name: str(Path(path).absolute()) for name, path in paths.items() if path is not None}
    return config.model_copy(update={"data": config.data.model_copy(update=full)})


class _NoNumbers(TorchFunctionMode):
    """Inside, nothing is drawn at random: on the meta device that would import torch's compiler, for a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.normal_, torch.Tensor.uniform_):
            return args[0]
        return func(*args, **(kwargs or {}))


def _on_meta(config: RunConfig) -> Model:
    """The model without its numbers: a mechanism refuses here what it cannot do."""
    with torch.device("meta"), _NoNumbers():
        return Model(model_config(config.model))


def _new_model(config: RunConfig) -> Model:
    """The model as its seed begins it."""
    torch.manual_seed(seed_of(config.seed, -1))
    return Model(model_config(config.model))


def _check_machine(config: RunConfig) -> None:
    """The one-line error for what is configured and not here."""
    pick_device(config.train)
    if config.train.tensorboard:
        tensorboard()


def _train(config: RunConfig, task: Task, model: Model, folder: Path, screen: Screen) -> Outcome:
    """Train in a locked folder from where it stands."""
    start = time.perf_counter()
    checkpoint = newest_checkpoint(folder / "checkpoints", screen.warn)
    if checkpoint is None and steps(folder / "checkpoints"):
        raise LinnetError(f"{folder}: no checkpoint is whole; start anew in another folder")
    if checkpoint is None and config.pretrain:
        before = pretrain(model, config, folder / "pretrain", screen)
        if before.signal:
            return before._replace(folder=folder, pretraining=True)
    trainer = Trainer(config, task, model, folder, _state(config, task))
    if checkpoint is not None:
        check_settings(folder, checkpoint.state, config)
        check_saved(folder, checkpoint, config.task, model.config, screen.warn)
        check_data(folder, checkpoint.state["data"], trainer.state["data"])
        _compare(checkpoint.state, trainer.state, screen)
        trainer.restore(checkpoint)
        if trainer.at.best_step not in (None, *steps(folder / "checkpoints")):
            gone = f"the checkpoint of the best evaluation so far, step {trainer.at.best_step}, is not here"
            screen.warn(f"{folder}: {gone}: put it back, or there is no best until a better one")
        screen.say(f"{folder} is at step {trainer.at.step} of {config.train.steps}")
    else:
        screen.say(f"{folder}: {count_parameters(model):,} parameters on {trainer.device}")
    for line in trainer.watch.refusals(trainer.model) if trainer.watch else ():
        screen.warn(line)
    log = RunLog(folder, config.train, trainer.at.step, trainer.at.evaluated, screen)
    try:
        stop = trainer.run(log)
    finally:
        log.close()
    return _outcome(folder, config, trainer.at, 0 if trainer.finished else stop.signal, start)


def pretrain(model: Model, config: RunConfig, folder: Path, screen: Screen) -> Outcome:
    """Denoise the task's own training sequences, as a run of its own inside the run, and take over what it learned.

    All of it goes into `model` but the output, which is another; nothing, if a signal stops it before its end.
    """
    length = pretrain_length(config)
    changes = {"steps": length, "warmup": min(config.train.warmup, length), "pretrain_steps": 0}
    train = config.train.model_copy(update=changes)
    update = {"train": train, "data": config.data.model_copy(update={"objective": "denoise"}), "pretrain": False}
    planned = config.model_copy(update={**update, "model": {**config.model, "output": "masked_lm"}})
    if (folder / "config.toml").exists():
        changed = difference(run_config(folder), planned)
        if changed:
            raise InputError(f"{folder} was begun otherwise, now {changed}: put it back, or start a new run")
        outcome = resume_run(folder, screen)
    else:
        outcome = start_run(planned, folder, screen)
    if not outcome.signal:
        learned = load_run(folder, None, screen.warn)[0].state_dict()
        kept = {name: tensor for name, tensor in learned.items() if not name.startswith("output.")}
        load_weights(model, {**model.state_dict(), **kept}, folder)
    return outcome


def pretrain_length(config: RunConfig) -> int:
    """Updates of pretraining, as many as those of the task itself where nothing is said."""
    return (config.train.pretrain_steps or config.train.steps) if config.pretrain else 0


def _finished(folder: Path, config: RunConfig, screen: Screen) -> Outcome | None:
    """What a run that is at its end came to, read without changing or needing anything else; None if it is not."""
    start = time.perf_counter()
    newest = max(steps(folder / "checkpoints"), default=0)
    if newest < config.train.steps:
        return None
    try:
        checkpoint = read_checkpoint(folder / f"checkpoints/step-{newest}", optimizer=False)
    except CheckpointError:
        return None  # training goes on from an older one, and says why
    at = Position(**checkpoint.state["position"])
    if at.evaluated != at.step:
        return None
    if "settings" in checkpoint.state:
        check_settings(folder, checkpoint.state, config)
    check_saved(folder, checkpoint, config.task, model_config(config.model), screen.warn)
    screen.say(f"{folder} is at step {at.step} of {config.train.steps} and finished")
    return _outcome(folder, config, at, 0, start)


def _outcome(folder: Path, config: RunConfig, at: Position, signal: int, start: float) -> Outcome:
    """Where a run stands, and the last evaluation of it."""
    evaluations = _evaluations(folder)
    return Outcome(
        folder=folder,
        step=at.step,
        steps=config.train.steps,
        tokens=at.tokens,
        parameters=count_parameters(_on_meta(config)),
        signal=signal,
        seconds=round(time.perf_counter() - start, 3),
        valid=evaluations[-1] if evaluations else None,
    )


def _state(config: RunConfig, task: Task) -> dict[str, Any]:
    """What a checkpoint holds besides weights and position, for `resume` to compare."""
    return {
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "device": pick_device(config.train).type,
        "data": task.fingerprint(),
        "settings": settings(config),
    }


def _compare(before: Mapping[str, Any], now: Mapping[str, Any], screen: Screen) -> None:
    """Warn where the bits of a run may come out differently."""
    then = before["versions"]
    differing = [f"{k} {then.get(k)} then, {v} now" for k, v in now["versions"].items() if then.get(k) != v]
    differing += [f"{k} {before.get(k)} then, {now[k]} now" for k in ("threads", "device") if before.get(k) != now[k]]
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
