"""The records of a run: on the screen, as JSON lines and in TensorBoard.

`metrics.jsonl` holds nothing that depends on time, so a run that was killed and resumed leaves the same file as an
uninterrupted one. Times are in `timings.jsonl`.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from linnet.config import TrainConfig
from linnet.errors import InputError, missing_extra_error_text
from linnet.screen import Screen
from linnet.storage import MetricsLog, read_run_metrics, seal_run_record, write_text_file


class RunLog:
    """The records of a run: on the screen, in `metrics.jsonl` and `timings.jsonl`, and in TensorBoard if asked for.

    `resume_at` is the step of the checkpoint that the run resumes from, `evaluated` is the step of its last evaluation,
    and `mark` is that of the metrics when it was saved.
    """

    def __init__(
        self,
        folder: Path,
        train: TrainConfig,
        resume_at: int,
        evaluated: int,
        screen: Screen,
        mark: dict[str, Any] | None = None,
    ) -> None:
        self.screen = screen
        self.steps = train.steps
        board = tensorboard_log() if train.tensorboard else None  # before any file is opened
        if evaluated < resume_at:  # an evaluation of this step, if due, is repeated
            for name in ("metrics.jsonl", "timings.jsonl"):
                _forget_evaluation(folder / name, resume_at)
        self._metrics = MetricsLog(folder / "metrics.jsonl", resume_at, mark)
        self._timings = MetricsLog(folder / "timings.jsonl", resume_at)
        self._board = board(str(folder / "tensorboard"), purge_step=resume_at + 1) if board else None
        self._show = screen.work("training")
        self._worked = time.process_time()  # seconds of the processor at the last record

    def step(self, step: int, loss: float, rate: float, left: float) -> None:
        """Update the bar with tokens per second and the time left."""
        if self.screen.bar is not None:
            self._show(step, self.steps)
            note = f"{step}/{self.steps}  loss {loss:.4f}  {rate:,.0f} tokens/s  {_clock(left)} left"
            self.screen.bar.update(self.screen.bar.task_ids[-1], note=note)

    def train(self, record: dict[str, Any], seconds: float, timing: dict[str, float], left: float) -> None:
        """Record the mean over the updates since the last record; `timing` has their speed and loading time."""
        self._add("train", record, seconds, **timing)
        if self.screen.bar is None:
            self.screen.say(
                f"step {record['step']}/{self.steps}  loss {record['loss']:.4f}  lr {record['lr']:.2e}  "
                f"{timing['tokens_per_second']:,.0f} tokens/s  {_clock(left)} left"
            )

    def evaluation(self, record: dict[str, Any], seconds: float) -> None:
        """Record the metrics of one evaluation."""
        self._add(record["split"], record, seconds)
        self.screen.say(f"step {record['step']}/{self.steps}  {describe_log_record(record)}")

    def instruments(self, record: dict[str, Any], seconds: float) -> None:
        """Record the numbers of the instruments by layer and head, without printing them."""
        self._add("instruments", record, seconds)

    def mark(self) -> dict[str, Any]:
        """The mark of the metrics so far, for the checkpoint they belong to."""
        return self._metrics.mark()

    def sync(self) -> None:
        """Flush all records to disk, before the checkpoint they belong to is written."""
        self._timings.sync()
        self._metrics.sync()

    def close(self) -> None:
        """Close the files and remove the bar."""
        self._metrics.close()
        self._timings.close()
        if self._board is not None:
            self._board.close()
        self.screen.close()

    def _add(self, split: str, record: dict[str, Any], seconds: float, **timing: float) -> None:
        self._metrics.append(record)
        before, self._worked = self._worked, time.process_time()
        core_seconds = round(self._worked - before, 3)  # unlike seconds, without pauses
        spent = {"step": record["step"], "split": split, "seconds": round(seconds, 3), "core_seconds": core_seconds}
        spent |= timing
        self._timings.append(seal_run_record(spent))
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{split}/{name}", value, record["step"])


class NoLog(RunLog):
    """The records of a rank that is not the first: it writes none."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen

    def step(self, step: int, loss: float, rate: float, left: float) -> None:
        """Show nothing."""

    def train(self, record: dict[str, Any], seconds: float, timing: dict[str, float], left: float) -> None:
        """Record nothing."""

    def evaluation(self, record: dict[str, Any], seconds: float) -> None:
        """Record nothing."""

    def instruments(self, record: dict[str, Any], seconds: float) -> None:
        """Record nothing."""

    def mark(self) -> dict[str, Any]:
        """The mark of no records."""
        return {}

    def sync(self) -> None:
        """Flush nothing."""

    def close(self) -> None:
        """Close nothing."""


def _forget_evaluation(path: Path, step: int) -> None:
    """Remove the records of the evaluation at one step, atomically."""
    records = read_run_metrics(path)
    kept = [record for record in records if record["step"] != step or record.get("split") in ("train", "instruments")]
    if len(kept) < len(records):
        write_text_file(path, "".join(json.dumps(record) + "\n" for record in kept))


def describe_log_record(metrics: dict[str, Any]) -> str:
    """An evaluation in one readable line."""
    shown = {name: value for name, value in metrics.items() if isinstance(value, float)}
    values = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in shown.items())
    counts = [f"{metrics[name]:,} {name}" for name in ("tokens", "samples") if name in metrics]
    return f"{metrics['split']}: {values}  ({', '.join(counts)}, context {metrics['context']})"


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"


def tensorboard_log() -> Callable[..., Any]:
    """TensorBoard's writer class; raises if the extra `track` is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            f"train.tensorboard is true, which needs tensorboard: {missing_extra_error_text('track')}"
        ) from None
    return SummaryWriter
