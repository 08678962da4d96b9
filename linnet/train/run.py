"""Start, resume and evaluate runs; a run is a folder that holds everything about it.

A `Run` resolves its configuration, data and model once. With a `Run`, or the `Outcome` that carries it, training and
evaluation do not parse, build or prepare anything a second time.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from linnet.config import RunConfig, dump_config
from linnet.data.corpora import SPLITS
from linnet.distributed.ranks import Ranks, launched_ranks
from linnet.distributed.shards import rows_of_rank
from linnet.distributed.spread import check_spread, mesh_of_ranks, share_of_rank
from linnet.errors import InputError, LinnetError, unknown_name_error
from linnet.models.backbone import Model, build_backbone_on_meta, count_backbone_parameters
from linnet.models.config import ModelConfig
from linnet.models.loading import check_loading_checkpoint, load_model_weights, load_saved_checkpoint
from linnet.models.presets import is_resolved_preset, preset_config
from linnet.registry import TASK
from linnet.screen import Screen
from linnet.storage import (
    CheckpointError,
    Position,
    RunLock,
    check_run_metrics,
    checkpoint_steps,
    clean_finished_run,
    clean_temporary_files,
    newest_checkpoint,
    read_checkpoint,
    read_run_metrics,
    write_run_environment,
    write_text_file,
)
from linnet.tasks.base import Task
from linnet.train.check import (
    check_and_read_config,
    check_config_difference,
    check_config_tables,
    check_out_folder,
    check_resumed_data,
    check_resumed_settings,
)
from linnet.train.checkpoint_step import run_checkpoint_step
from linnet.train.device import device_precision, pick_device
from linnet.train.environment import (
    check_environment,
    compare_environment,
    compare_ranks,
    describe_environment,
    environment_state,
)
from linnet.train.fresh import absolute_fresh_config, fresh_config
from linnet.train.log import NoLog, RunLog
from linnet.train.loop import Trainer, loop_seed
from linnet.train.memory import memory_lack, memory_of_device
from linnet.train.optim import MOMENTS
from linnet.train.pretraining import pretrained_encoder, pretraining_config, take_over_pretrained


class Run:
    """One run: its configuration, its task with the data, and its model, each created on first use and then kept.

    `cache` replaces the cache folder of the configuration, for data that are slow to prepare; a run that is only
    `planned` leaves the slowest part out. Each of several `ranks` has its own `Run`; rank 0 alone writes the folder.
    """

    def __init__(
        self, config: RunConfig, folder: Path | None, screen: Screen, cache: Path | None = None, planned: bool = False
    ) -> None:
        self.given, self.screen, self.cache = config, screen, cache
        self._folder, self._planned = folder, planned
        self.ranks: Ranks = launched_ranks()
        self.world = self.ranks.world  # a dry run plans for other numbers

    @property
    def folder(self) -> Path:
        """The folder of the run; a dry run has none."""
        assert self._folder is not None
        return self._folder

    @cached_property
    def task(self) -> Task:
        """The task, with its data prepared."""
        if self.given.train.threads:
            torch.set_num_threads(self.given.train.threads)
        try:
            made: Task = TASK[self.given.task](self.given, self.cache, self._folder, self.screen.work)
            if not self._planned:
                made.prepare()
        finally:
            self.screen.close()
        made.share, made.token_slice = share_of_rank(self.given.distributed, self.ranks.rank, self.world)
        return made

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """Hashes of the data."""
        return self.task.fingerprint()

    @cached_property
    def model_config(self) -> ModelConfig:
        """Every field of the model: as configured, else as the data determine. A resolved table needs no data."""
        table = self.given.model
        return preset_config(table if is_resolved_preset(table) else {**self.task.model_fields(), **table})

    @cached_property
    def config(self) -> RunConfig:
        """The configuration with every field of the model, as in config.toml."""
        chosen = {"preset": self.given.model["preset"]} if "preset" in self.given.model else {}
        table = {**chosen, **self.model_config.model_dump(mode="json", exclude_none=True)}
        return self.given.model_copy(update={"model": table})

    @cached_property
    def skeleton(self) -> Model:
        """The model on the meta device, to count with; raises if the model cannot be built."""
        return build_backbone_on_meta(self.model_config)

    @cached_property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return count_backbone_parameters(self.skeleton)

    @property
    def lack(self) -> str | None:
        """Why this machine has too little memory for the run, if that is certain."""
        memory = memory_of_device(pick_device(self.given.train).type)
        how = self.given.distributed
        parts = 1 if how is None else mesh_of_ranks(how, self.world)["shard"]
        return memory_lack(self.task, self.model_config, self.skeleton, memory, self.world, parts)

    @cached_property
    def model(self) -> Model:
        """The model, initialized from the seed until it is trained or loaded."""
        torch.manual_seed(loop_seed(self.given.seed, -1))
        return Model(self.model_config)

    def remark(self) -> None:
        """Print the task's remarks about its data."""
        for line in self.task.remarks():
            self.screen.say(line)

    def check(self) -> None:
        """Prepare the data, and raise if the model does not fit them or the ranks, or cannot be built."""
        with self.ranks.in_turn():
            self.task.check_model(self.model_config)
        check_spread(self.skeleton, self.given.distributed, self.world, self.given.train.batch)
        if self.ranks.world > 1:
            compare_ranks(self.ranks, self.given, self.fingerprint)

    def check_memory(self) -> None:
        """Raise if the run certainly needs more memory than there is."""
        if self.lack is not None:
            raise InputError(self.lack)

    def start(self) -> "Outcome":
        """Train from the beginning, in a new or empty folder."""
        folder = self.folder
        check_config_tables(self.given)
        check_out_folder(folder)
        check_environment(self.given)
        self.check()
        self.check_memory()
        self.remark()
        _ = self.model  # before anything is written: it may not fit into memory
        with contextlib.ExitStack() as locked:
            if self.ranks.first:
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise LinnetError(f"cannot write {folder}: {error.strerror}") from None
                locked.enter_context(RunLock(folder))
                check_out_folder(folder)  # another process may have been faster
                clean_temporary_files(folder)
                write_text_file(folder / "config.toml", dump_config(self.config))
                self._describe()
            self.ranks.share()
            return self._train()

    def resume(self) -> "Outcome":
        """Continue from the newest valid checkpoint, or start if there is none; a finished run is only read."""
        folder = self.folder
        done = self._finished()
        if done is not None:
            return done
        check_environment(self.given)
        with RunLock(folder) if self.ranks.first else contextlib.nullcontext():
            if self.ranks.first:
                self._warn(clean_temporary_files(folder, shared=True) or clean_temporary_files(folder / "checkpoints"))
            self.check()
            self.check_memory()
            again = not checkpoint_steps(folder / "checkpoints") or not (folder / "environment.json").exists()
            if self.ranks.first and again:  # it starts from the beginning
                self._describe()
            self.ranks.share()
            return self._train()

    def load(self, checkpoint: str = "last") -> Model:
        """The model of a checkpoint ("last", "best" or a step number), on the CPU and in evaluation mode."""
        step = run_checkpoint_step(self.folder, checkpoint)
        saved = load_saved_checkpoint(self.folder, step, self.given.task, self.model_config, self.screen.warn)
        if "settings" in saved.state:
            check_resumed_settings(self.folder, saved.state, self.config)
        check_resumed_data(self.folder, saved.state.get("data") or {}, self.fingerprint)
        check_run_metrics(self.folder / "metrics.jsonl", saved.state.get("metrics"))
        self._restore_tokenizer()
        load_model_weights(self.model, saved.model, saved.path)
        return self.model.cpu().eval()

    def evaluate(self, split: str, checkpoint: str = "last", batches: int = 0) -> dict[str, Any]:
        """The metrics of a checkpoint on a whole split, or on `batches` batches of it."""
        if split not in SPLITS:
            raise unknown_name_error("split", split, SPLITS)
        train, device = self.given.train, pick_device(self.given.train)
        model = self.load(checkpoint).to(device)
        self.task.check_model(self.model_config)
        try:
            with device_precision(train, device):
                show = self.screen.work(f"evaluating on the {split} split")
                metrics = self.task.evaluate(model, split, batches, device, show)
        finally:
            self.screen.close()
        assert metrics is not None  # there is no `stop` to end it early
        return metrics

    def _restore_tokenizer(self) -> None:
        """Write a lost tokenizer again; the one just built from the data has the SHA-256 in the checkpoint."""
        path = self.folder / "tokenizer.json"
        if "tokenizer" in self.fingerprint and not path.exists():
            try:
                self.task.save(self.folder)
                self.screen.say(f"{path} was missing and was rebuilt from the data")
            except LinnetError as error:
                self._warn(f"{error}: using a copy rebuilt from the data")

    def _warn(self, failure: str) -> None:
        """Warn about a failure, if there was one."""
        if failure:
            self.screen.warn(failure)

    def _describe(self) -> None:
        """Write the files of a run besides its configuration and checkpoints."""
        self.task.save(self.folder)
        write_run_environment(self.folder, describe_environment(self.config, self.task, self.fingerprint))

    def _train(self) -> "Outcome":
        """Train in a locked folder, from its newest checkpoint on."""
        start, folder, config, screen, ranks = time.perf_counter(), self.folder, self.config, self.screen, self.ranks
        rows = rows_of_rank(self.skeleton, MOMENTS[:2], ranks, config.distributed)
        checkpoint = newest_checkpoint(folder / "checkpoints", screen.warn, rows=rows, share=ranks.share)
        if checkpoint is None and checkpoint_steps(folder / "checkpoints"):
            raise LinnetError(f"{folder}: no checkpoint is intact; start again in another folder")
        if checkpoint is None and config.pretrain:
            before = self._pretrain()
            if before.signal:
                return replace(before, folder=folder, pretraining=True, run=self)
        elif checkpoint is None and (encoder := pretrained_encoder(config)):
            screen.say(take_over_pretrained(self.model, encoder, screen.warn))
        trainer = Trainer(config, self.task, self.model, folder, environment_state(config, self.fingerprint), ranks)
        if checkpoint is not None:
            check_resumed_settings(folder, checkpoint.state, config)
            check_loading_checkpoint(folder, checkpoint, config.task, self.model_config, screen.warn)
            check_resumed_data(folder, checkpoint.state.get("data") or {}, trainer.state["data"])
            check_run_metrics(folder / "metrics.jsonl", checkpoint.state.get("metrics"))
            if ranks.first:
                self._restore_tokenizer()
            compare_environment(checkpoint.state, trainer.state, screen)
            trainer.restore(checkpoint)
            if trainer.at.best_step not in (None, *checkpoint_steps(folder / "checkpoints")):
                gone = f"the best checkpoint so far, step {trainer.at.best_step}, is missing"
                screen.warn(f"{folder}: {gone}: put it back, or there is no best one until a better evaluation")
            screen.say(f"{folder} is at step {trainer.at.step} of {config.train.steps}")
        else:
            screen.say(f"{folder}: {self.parameters:,} parameters on {trainer.device}")
        for line in trainer.watch.refusals(trainer.model) if trainer.watch else ():
            screen.warn(line)
        mark = None if checkpoint is None else checkpoint.state.get("metrics")
        del checkpoint  # its tensors have been copied, so this halves the memory
        at = trainer.at
        log = RunLog(folder, config.train, at.step, at.evaluated, screen, mark) if ranks.first else NoLog(screen)
        try:
            ranks.share()
            with ranks.training():
                stop = trainer.run(log)
        finally:
            log.close()
        ranks.share()
        return self._outcome(trainer.at, 0 if trainer.finished else stop.signal, start)

    def _pretrain(self) -> "Outcome":
        """Do the pretraining run inside this one and copy its weights, unless a signal stops it."""
        planned, folder = pretraining_config(self.config), self.folder / "pretrain"
        if (folder / "config.toml").exists():
            begun = check_and_read_config(folder)
            changed = check_config_difference(begun, planned)
            if changed:
                raise InputError(
                    f"{folder} was started with other settings, now {changed}: put it back, or start a new run"
                )
            outcome = Run(begun.model_copy(update={"distributed": planned.distributed}), folder, self.screen).resume()
        else:
            outcome = start_run(planned, folder, self.screen)
        if not outcome.signal:
            take_over_pretrained(self.model, folder, self.screen.warn)
        return outcome

    def _finished(self) -> "Outcome | None":
        """The outcome of a finished run, read without its data; None if the run is not finished."""
        start, folder, config = time.perf_counter(), self.folder, self.given
        newest = max(checkpoint_steps(folder / "checkpoints"), default=0)
        if newest < config.train.steps:
            return None
        try:
            checkpoint = read_checkpoint(folder / f"checkpoints/step-{newest}", optimizer=False)
            at = checkpoint.position
        except CheckpointError:
            return None  # training continues from an older one and says why
        if at.evaluated != at.step:
            return None
        if "settings" in checkpoint.state:
            check_resumed_settings(folder, checkpoint.state, config)
        check_loading_checkpoint(folder, checkpoint, config.task, self.model_config, self.screen.warn)
        check_run_metrics(folder / "metrics.jsonl", checkpoint.state.get("metrics"))
        self._warn(clean_finished_run(folder))
        self.screen.say(f"{folder} is at step {at.step} of {config.train.steps} and finished")
        return self._outcome(at, 0, start, checkpoint.state.get("metrics"))

    def _outcome(self, at: Position, signal: int, start: float, mark: Mapping[str, Any] | None = None) -> "Outcome":
        """The progress of a run and its last evaluation, up to the mark of a checkpoint."""
        records = read_run_metrics(self.folder / "metrics.jsonl", mark)
        evaluations = [record for record in records if record.get("split") == "valid"]
        return Outcome(
            folder=self.folder,
            step=at.step,
            steps=self.given.train.steps,
            tokens=at.tokens,
            parameters=self.parameters,
            signal=signal,
            seconds=round(time.perf_counter() - start, 3),
            valid=evaluations[-1] if evaluations else None,
            run=self,
        )


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run; `signal` is the signal that stopped it, or 0 if it finished."""

    folder: Path
    step: int
    steps: int
    tokens: int
    parameters: int
    signal: int
    seconds: float
    valid: dict[str, Any] | None  # the last evaluation
    pretraining: bool = False  # True if it was stopped during pretraining: the other fields then describe that part
    run: Run = field(kw_only=True, compare=False, repr=False)  # to evaluate it without preparing its data again

    def summary(self) -> dict[str, Any]:
        """The outcome as plain values."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "run"}
        return {**values, "folder": str(self.folder)}


def open_run(folder: str | Path, screen: Screen) -> Run:
    """The run in a folder, to resume, load or evaluate."""
    return Run(check_and_read_config(Path(folder)), Path(folder), screen)


def start_run(config: RunConfig, out: str | Path, screen: Screen) -> Outcome:
    """Train from the beginning, in the new or empty folder `out`."""
    return Run(fresh_config(absolute_fresh_config(config)), Path(out), screen).start()


def continue_run(config: RunConfig, folder: str | Path, screen: Screen) -> Outcome:
    """Resume a run that torchrun has started again; raises if it was begun with another configuration."""
    run = open_run(folder, screen)
    changed = check_config_difference(run.given, fresh_config(absolute_fresh_config(config)))
    if changed:
        raise InputError(f"{folder} was started otherwise, now {changed}: name another folder")
    return run.resume()


def resume_run(folder: str | Path, screen: Screen) -> Outcome:
    """Continue from the newest valid checkpoint, or start if there is none; a finished run is only read."""
    return open_run(folder, screen).resume()


def evaluate_run(folder: str | Path, split: str, screen: Screen, checkpoint: str = "last") -> dict[str, Any]:
    """The metrics of one of a run's checkpoints on a whole split."""
    return open_run(folder, screen).evaluate(split, checkpoint)
