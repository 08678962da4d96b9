"""The only training loop: update, evaluate and save until the steps are done or a signal arrives.

The data, the masks and the dropout of an update are functions of the seed and of the update's number. So a checkpoint
stores no random state, and a run that was stopped anywhere continues to the same bits.

Many ranks do what one does: each reads its rows of a micro-batch, sums and gradients are those of all rows, and what
ends a run (a signal, a number that is not finite) is agreed, so that all ranks stop after the same update.
"""

import hashlib
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from linnet.config import RunConfig
from linnet.distributed.ranks import Ranks
from linnet.distributed.shards import load_shards
from linnet.distributed.spread import spread_model
from linnet.models.backbone import Model
from linnet.models.loading import load_model_weights
from linnet.storage import Checkpoint, Position
from linnet.tasks.base import Batch, Task, task_batch_to_device
from linnet.train.device import deterministic_device, device_precision, pick_device
from linnet.train.evaluating import evaluate_over_ranks
from linnet.train.finite import NonFiniteError, find_not_finite_gradient, find_not_finite_place
from linnet.train.log import RunLog
from linnet.train.optim import (
    finish_optim_gradients,
    load_optimizer,
    make_optimizer,
    optim_layer_norms,
    optimizer_tensors,
)
from linnet.train.saving import CheckpointSaver
from linnet.train.schedule import scheduled_first_beta, scheduled_learning_rate
from linnet.train.signals import Stop
from linnet.train.watch import Watch


class _Part(NamedTuple):
    """A part of a micro-batch, the seed of its dropout, and its summed loss once it is known."""

    batch: Batch
    seed: int
    loss: float = 0.0


class Trainer:
    """Trains `model` on `task` and saves checkpoints in `folder/checkpoints`; `state` is stored in each of them."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        model: Model,
        folder: Path,
        state: dict[str, Any],
        ranks: Ranks | None = None,
    ) -> None:
        self.config, self.train, self.task, self.state = config, config.train, task, state
        self.ranks = ranks or Ranks()
        self.device = pick_device(config.train)
        self.model = model.to(self.device)
        self.model.recompute = config.distributed is not None and config.distributed.activation_checkpointing
        half = config.train.precision == "bfloat16"
        self.spread = spread_model(self.model, self.ranks, config.distributed, self.device, half, config.train.compile)
        self.saver = CheckpointSaver(folder / "checkpoints", config.train, self.ranks, self.spread.sharded)
        self.optimizer = make_optimizer(self.model, config.train)
        names = config.train.instruments
        self.watch = Watch(names, task, self.device) if names else None
        self.at = Position()
        self.stop = Stop()
        self._part: _Part | None = None  # the newest part, or the first one whose loss is not finite
        self._saved: int | None = None
        self._clock = 0.0  # seconds of updates since the last record
        self._loading = 0.0  # the part of them spent loading batches
        self._saving = 0.0  # seconds of waiting for checkpoints since the last record
        self._cold: float | None = None  # the part of them spent in the first update, which is left out of the speed
        self._read = 0  # tokens in the other updates

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint; raises if it belongs to another model."""
        load = load_shards if self.spread.sharded else load_model_weights
        load(self.model, checkpoint.model, checkpoint.path)
        load_optimizer(self.model, self.optimizer, checkpoint.optimizer, checkpoint.step)
        self.at = checkpoint.position
        self._saved = self.at.step

    def run(self, log: RunLog) -> Stop:
        """Train to the end or until a signal arrives; either way, save the state after the last complete update."""
        with self.stop, deterministic_device(self.device), self.saver:
            self.model.train()
            if self.spread.copied and self.at.step < self.train.steps:
                self._settle()
            while True:
                self.saver.check()
                evaluated = self._due(self.train.eval_every) and self.at.evaluated != self.at.step
                if evaluated:
                    evaluated = self._evaluate(log)
                stopped = self._agree()
                best = evaluated and self.at.step in self.at.best_steps
                wanted = best or stopped or self._due(self.train.save_every)
                if self.at.step and (evaluated or self._saved != self.at.step) and wanted:
                    self._save(log)
                if stopped or self.at.step >= self.train.steps:
                    return self.stop
                done = self._timed_update(log)
                if done and self.watch is not None and self._due(self.train.instrument_every):
                    self._measure(log, self.watch)

    def _settle(self) -> None:
        """Let DDP order its buckets before the first update, as it does after its first pass.

        The order decides how more than two ranks round a sum. Otherwise the first update of a resumed run would not
        have the bits of an uninterrupted one. The gradients of this pass are dropped.
        """
        batch = self.task.parts(task_batch_to_device(self.task.train_batch(0), self.device))[0]
        self._loss(self.spread.forward, _Part(batch, 0))[0].backward()

    @property
    def finished(self) -> bool:
        """Whether all steps and the evaluation after the last one are done."""
        return self.at.step >= self.train.steps and self.at.evaluated == self.at.step

    def _due(self, every: int) -> bool:
        """Whether this step is a multiple of `every`, or the last step."""
        step = self.at.step
        return step == self.train.steps or bool(every and step and step % every == 0)

    def _agree(self) -> bool:
        """Whether a signal has stopped this rank or another one; the answer is the same on all of them."""
        signal = int(self.ranks.most(self.stop.signal)[0])
        self.stop.signal = self.stop.signal or signal
        return bool(signal)

    def _timed_update(self, log: RunLog) -> bool:
        """Do an update, time it and record it; False if a signal arrived during it."""
        start, before = time.perf_counter(), self.at.tokens
        done = self._update()
        if done is None:
            return False
        rate, norm = done
        seconds, tokens = time.perf_counter() - start, self.at.tokens - before
        self._clock += seconds
        if self._cold is None:
            self._cold = seconds
        else:
            self._read += tokens
        warm = self._clock - self._cold
        self._record(log, rate, norm, self._read / warm if self._read else tokens / seconds)
        return True

    def _update(self) -> tuple[float, float] | None:
        """Do one update on the mean loss over its micro-batches; returns the learning rate and the gradient norm.

        An update may take long. If a signal arrives during it, its gradients are dropped and None is returned; the
        resumed run computes all of it again, to the same bits.
        """
        train, step = self.train, self.at.step + 1
        self.optimizer.zero_grad(set_to_none=True)
        loss, terms, tokens = 0.0, 0, 0
        for micro in range(train.accumulate):
            found = self._accumulate((step - 1) * train.accumulate + micro, step)
            if found is None:
                return None
            loss, terms, tokens = loss + found[0], terms + found[1], tokens + found[2]
        if self.ranks.world > 1:
            loss, *counts = self.ranks.sums(loss, terms, tokens)
            terms, tokens = map(int, counts)
            if not math.isfinite(loss):
                self._raise_not_finite_loss(step)
        count = max(terms, 1) / self.ranks.world
        layers = optim_layer_norms(self.model, count)
        norm = finish_optim_gradients(self.model, count, train.clip, train.clip_value)
        if not math.isfinite(norm):
            place = find_not_finite_gradient(self.model, self.ranks)
            self._raise_not_finite(f"step {step}: {place} is not finite; this step was not saved")
        rate = scheduled_learning_rate(train, step)
        for group in self.optimizer.param_groups:
            group["lr"], group["betas"] = rate, (scheduled_first_beta(train, step), train.betas[1])
        self.optimizer.step()
        self.at.step = step
        self.at.tokens += tokens
        self.at.loss += loss
        self.at.terms += terms
        self._add_norms([norm, *layers])
        return rate, norm

    def _add_norms(self, norms: list[float]) -> None:
        """Add the gradient norms of an update to the sums since the last record."""
        at = self.at
        at.updates += 1
        at.norms = [a + b for a, b in zip(at.norms or [0.0] * len(norms), norms, strict=True)]
        at.squares = [a + b * b for a, b in zip(at.squares or [0.0] * len(norms), norms, strict=True)]

    def _accumulate(self, number: int, step: int) -> tuple[float, int, int] | None:
        """Add the gradients of one micro-batch; returns its summed loss, the number of terms, and its tokens.

        Returns None if a signal arrived before its last part.
        """
        last = (number + 1) % self.train.accumulate == 0  # micro-batch of the update
        start = time.perf_counter()
        parts = self.task.parts(task_batch_to_device(self.task.train_batch(number), self.device))
        self._loading += time.perf_counter() - start
        loss, terms, tokens = 0.0, 0, 0
        for i, batch in enumerate(parts):
            if self._agree():
                return None
            own = (i, self.ranks.rank) if self.ranks.rank else (i,) if i else ()
            part = _Part(batch, loop_seed(self.config.seed, number, *own))
            with self.spread.accumulating(last and i == len(parts) - 1):
                more, count = self._add(part, step)
            loss, terms = loss + more, terms + count
            tokens += self.task.batch_tokens(batch)
        return loss, terms, tokens

    def _add(self, part: "_Part", step: int) -> tuple[float, int]:
        """Add the gradients of a part of a micro-batch; returns its summed loss and the number of terms."""
        total, terms = self._loss(self.spread.forward, part)
        loss = float(total.detach())
        if self._part is None or math.isfinite(self._part.loss):
            self._part = part._replace(loss=loss)
        if self.ranks.world == 1 and not math.isfinite(loss):
            self._raise_not_finite_loss(step)
        total.backward()
        return loss, terms

    def _loss(self, model: nn.Module, part: "_Part") -> tuple[Tensor, int]:
        """The summed loss of a part, and the number of terms in the sum."""
        torch.manual_seed(part.seed)  # for dropout
        with device_precision(self.train, self.device):
            return self.task.loss(model, part.batch)

    def _raise_not_finite_loss(self, step: int) -> None:
        """Raise, naming where the loss stops being finite; all ranks look, each at its own part."""
        part = self._part
        assert part is not None
        place = find_not_finite_place(self.model, lambda: self._loss(self.model, part), self.ranks)
        text = f"step {step}: the loss is {part.loss}, first in {place}; this step was not saved"
        self._raise_not_finite("" if math.isfinite(part.loss) else text)

    def _raise_not_finite(self, text: str) -> None:
        """Raise on every rank the first of their texts; "" is that of a rank that has found nothing."""
        found = next(filter(None, self.ranks.share(text)), "the loss over all ranks is too large; it was not saved")
        self.ranks.settled = True
        raise NonFiniteError(found)

    def _record(self, log: RunLog, rate: float, norm: float, speed: float) -> None:
        """Show progress; every `log_every` steps, record the mean loss since the last record."""
        at, train = self.at, self.train
        left = (train.steps - at.step) * at.tokens / at.step / speed
        loss = at.loss / max(at.terms, 1)
        log.step(at.step, loss, speed, left)
        if at.step % train.log_every == 0 or at.step == train.steps:
            means, squares = ([x / at.updates for x in sums] for sums in (at.norms, at.squares))
            record = {"step": at.step, "split": "train", "loss": loss, "lr": rate, "grad_norm": norm}
            gradients = {"updates": at.updates, "grad_means": means, "grad_squares": squares}
            timing = {
                "loading": round(self._loading, 4),
                "saving": round(self._saving, 4),
                "tokens_per_second": round(speed, 1),
            }
            log.train({**record, "tokens": at.tokens, **gradients}, self._clock, timing, left)
            at.loss, at.terms, at.updates, at.norms, at.squares = 0.0, 0, 0, [], []
            self._clock, self._loading, self._saving, self._cold, self._read = 0.0, 0.0, 0.0, 0.0, 0

    def _measure(self, log: RunLog, watch: Watch) -> None:
        """Record the measurements of the instruments at this step."""
        start = time.perf_counter()
        record = {"step": self.at.step, "split": "instruments", **watch.read(self.model)}
        log.instruments(record, time.perf_counter() - start)

    def _evaluate(self, log: RunLog) -> bool:
        """Evaluate on the validation split and track the best step; False if a signal arrived during it."""
        start = time.perf_counter()
        batches, forward = self.train.eval_batches, self.spread.forward
        with device_precision(self.train, self.device):
            if self.ranks.world == 1:
                metrics = self.task.evaluate(forward, "valid", batches, self.device, stop=lambda: bool(self.stop))
            else:
                metrics = evaluate_over_ranks(
                    self.task, self.model, "valid", batches, self.device, self.ranks, self.stop
                )
        if metrics is None:
            return False
        if not math.isfinite(metrics["loss"]):
            raise NonFiniteError(f"step {self.at.step}: the loss on the validation split is {metrics['loss']}")
        self.at.add_evaluation(self.task.rank(metrics), self.train.keep_best)
        log.evaluation({"step": self.at.step, **metrics}, time.perf_counter() - start)
        return True

    def _save(self, log: RunLog) -> None:
        """Save this step; the time that training waits for it is recorded."""
        start = time.perf_counter()
        tensors = self.model.state_dict(), optimizer_tensors(self.model, self.optimizer)
        self.saver.save(*tensors, self.state, self.at, log)
        self._saved = self.at.step
        self._saving += time.perf_counter() - start


def loop_seed(*numbers: int) -> int:
    """One seed from several numbers; different numbers give unrelated seeds."""
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
