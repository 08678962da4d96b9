"""The loop learns, and a run stopped at any step resumes to the same bits."""

import os
import signal
from pathlib import Path

import pytest
import torch

from linnet.config import RunConfig
from linnet.models.backbone import Model
from linnet.screen import Screen
from linnet.storage import checkpoint_steps, read_checkpoint, read_run_metrics
from linnet.train.finite import NonFiniteError
from linnet.train.log import RunLog
from linnet.train.loop import Trainer
from linnet.train.run import Run, resume_run, start_run

TASKS = ("causal_lm", "masked_lm", "recall")
FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


class Stopping(Screen):
    """A screen that sends this process a signal as soon as a line begins with `text`."""

    def __init__(self, text: str, number: signal.Signals = signal.SIGTERM) -> None:
        super().__init__()
        self.text, self.number = text, number

    def say(self, text: str) -> None:
        if text.startswith(self.text):
            os.kill(os.getpid(), self.number)


def content(folder: Path) -> dict[str, bytes]:
    """Everything that must not depend on where a run was stopped."""
    paths = [
        path
        for step in checkpoint_steps(folder / "checkpoints")
        for path in (folder / f"checkpoints/step-{step}").iterdir()
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in [*paths, folder / "metrics.jsonl"]}


def trainer_of(settings: RunConfig) -> Trainer:
    """The trainer of a run, without a folder."""
    run = Run(settings, None, Screen(quiet=True))
    return Trainer(run.config, run.task, run.model, Path("unused"), {})


@pytest.mark.parametrize("task", TASKS)
def test_resume_at_every_step_is_bit_identical(task, config, tmp_path):
    steps_in_all = 7
    settings = config(task, steps=steps_in_all, log_every=1)
    assert start_run(settings, tmp_path / "whole", Screen(quiet=True)).step == steps_in_all
    whole = content(tmp_path / "whole")
    assert len(whole) == 1 + 4 * len(checkpoint_steps(tmp_path / "whole" / "checkpoints"))
    for step in range(1, steps_in_all):
        folder = tmp_path / f"stopped-{step}"
        outcome = start_run(settings, folder, Stopping(f"step {step}/"))
        assert (outcome.step, outcome.signal) == (step, signal.SIGTERM)
        assert resume_run(folder, Screen(quiet=True)).step == steps_in_all
        assert content(folder) == whole, f"stopped after step {step}"


@pytest.mark.parametrize("task", TASKS)
def test_stopping_after_every_step_is_bit_identical_with_sparse_records(task, config, tmp_path):
    """Here a log record sums over several steps, and so over several processes."""
    settings = config(task, steps=6, log_every=4, accumulate=3)
    start_run(settings, tmp_path / "whole", Screen(quiet=True))
    folder = tmp_path / "stopped"
    before = Trainer._update

    def stopping(trainer: Trainer) -> tuple[float, float]:
        done = before(trainer)
        os.kill(os.getpid(), signal.SIGINT)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_update", stopping)
        signals = [start_run(settings, folder, Screen(quiet=True)).signal]
        while signals[-1]:
            signals.append(resume_run(folder, Screen(quiet=True)).signal)
    assert signals == [signal.SIGINT] * 6 + [0]  # the sixth stop comes before the last evaluation
    last = "checkpoints/step-6/"
    kept = {name: data for name, data in content(folder).items() if name.startswith((last, "metrics"))}
    assert kept == {n: d for n, d in content(tmp_path / "whole").items() if n.startswith((last, "metrics"))}


def test_an_evaluation_is_recorded_once_despite_kills(config, tmp_path, monkeypatch):
    """A signal arrives before a due evaluation, then kill -9 twice, after its record and before a save."""
    settings = config(steps=6, log_every=1, save_every=0)
    start_run(settings, tmp_path / "whole", Screen(quiet=True))
    start_run(settings, tmp_path / "run", Stopping("step 3/6  loss"))
    assert read_checkpoint(tmp_path / "run/checkpoints/step-3").state["position"]["evaluated"] == 0
    before = RunLog.evaluation

    class Killed(BaseException):
        pass

    def killed(log: RunLog, *arguments) -> None:
        before(log, *arguments)
        raise Killed

    monkeypatch.setattr(RunLog, "evaluation", killed)
    for _ in range(2):
        with pytest.raises(Killed):
            resume_run(tmp_path / "run", Screen(quiet=True))
        assert [r["split"] for r in read_run_metrics(tmp_path / "run/metrics.jsonl")] == ["train"] * 3 + ["valid"]
    monkeypatch.undo()
    assert resume_run(tmp_path / "run", Screen(quiet=True)).step == 6
    assert content(tmp_path / "run") == content(tmp_path / "whole")
    timings = [(r["step"], r["split"]) for r in read_run_metrics(tmp_path / "run/timings.jsonl")]
    assert len(timings) == len(set(timings)) == 8


def test_a_run_does_not_depend_on_the_state_of_random_generators(config, tmp_path):
    torch.manual_seed(1)
    start_run(config(steps=2), tmp_path / "a", Screen(quiet=True))
    torch.manual_seed(2)
    start_run(config(steps=2), tmp_path / "b", Screen(quiet=True))
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_the_seed_changes_everything(config, tmp_path):
    first = start_run(config(steps=2), tmp_path / "a", Screen(quiet=True))
    other = config(steps=2).model_copy(update={"seed": 1})
    second = start_run(other, tmp_path / "b", Screen(quiet=True))
    assert first.valid["loss"] != second.valid["loss"]


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_falls(task, config, tmp_path):
    outcome = start_run(
        config(task, steps=80, batch=8, accumulate=1, eval_every=20, save_every=0, log_every=10),
        tmp_path / "run",
        Screen(quiet=True),
    )
    losses = [
        record["loss"] for record in read_run_metrics(tmp_path / "run/metrics.jsonl") if record["split"] == "train"
    ]
    assert losses[0] > (4 if task != "recall" else 1.5)  # it has four values to guess
    assert losses[-1] < 0.75 * losses[0]
    assert outcome.valid["loss"] < 0.8 * losses[0]


def test_accumulation_equals_one_large_batch(config):
    """The gradient is the mean over all terms, no matter how they are split."""
    gradients = []
    for batch, accumulate in ((6, 1), (2, 3), (1, 6)):
        still = {"dropout": 0.0, "options": {"diag": {"dropout": 0.0}}}
        settings = config("masked_lm", batch=batch, accumulate=accumulate, model=still)
        trainer = trainer_of(settings)
        trainer._update()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()]))
    assert float(gradients[0].norm()) > 0.1
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradients[2], gradients[0], rtol=1e-4, atol=1e-6)


def test_updates_of_one_cycle_are_those_of_torch(config):
    """The rate and the first beta of each update reach the optimizer, and entries of gradients are clipped."""
    still = {"dropout": 0.0, "options": {"diag": {"dropout": 0.0}}}
    cycle = {"schedule": "one_cycle", "lr": 0.01, "warmup_lr": 4e-4, "min_lr": 4e-8, "betas": (0.95, 0.999)}
    steps = {"steps": 8, "warmup": 3, "accumulate": 1, "peak_beta1": 0.85, "clip_value": 0.01, "clip": 0.0, "eps": 1e-3}
    trainer = trainer_of(config("masked_lm", model=still, **cycle, **steps))
    task, settings = trainer.task, trainer.config
    twin = Model(trainer.model.config)
    twin.load_state_dict(trainer.model.state_dict())
    optimizer = torch.optim.AdamW(twin.parameters(), eps=1e-3, weight_decay=settings.train.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, 8, pct_start=3 / 8, anneal_strategy="linear")
    for number in range(8):
        trainer._update()
        loss, terms = task.loss(twin, task.train_batch(number))
        (loss / terms).backward()
        torch.nn.utils.clip_grad_value_(twin.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
        if number < 7:
            schedule.step()
    for mine, theirs in zip(trainer.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_the_last_two_and_the_best_are_kept(config, tmp_path):
    rising = config(steps=8, eval_every=1, save_every=1, lr=9.0, clip=0.0)  # so high a rate that it gets worse
    start_run(rising, tmp_path / "run", Screen(quiet=True))
    valid = [record for record in read_run_metrics(tmp_path / "run/metrics.jsonl") if record["split"] == "valid"]
    best = min(valid, key=lambda record: record["loss"])["step"]
    assert best < 7
    assert checkpoint_steps(tmp_path / "run/checkpoints") == [best, 7, 8]


def test_the_best_checkpoint_is_kept_even_without_regular_saves(config, tmp_path):
    start_run(config(steps=5, eval_every=2, save_every=0), tmp_path / "run", Screen(quiet=True))
    assert checkpoint_steps(tmp_path / "run/checkpoints") == [4, 5]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_loss_stops_at_its_step_and_names_the_place(value, config, tmp_path, monkeypatch):
    """The third update meets a weight that is not finite; earlier checkpoints stay, and nothing else is saved."""
    before = Trainer._update

    def poisoned(trainer: Trainer) -> tuple[float, float]:
        if trainer.at.step == 2:
            with torch.no_grad():
                trainer.model.blocks[1].ffn.enter.weight[0, 0] = value
        return before(trainer)

    monkeypatch.setattr(Trainer, "_update", poisoned)
    with pytest.raises(NonFiniteError, match=r"step 3: the loss is .*blocks\.1\.ffn\.enter\.weight"):
        start_run(config(), tmp_path / "run", Screen(quiet=True))
    assert checkpoint_steps(tmp_path / "run/checkpoints") == [2]
    monkeypatch.undo()
    assert resume_run(tmp_path / "run", Screen(quiet=True)).step == 6
    start_run(config(), tmp_path / "whole", Screen(quiet=True))
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_a_bad_activation_is_named(config):
    trainer = trainer_of(config())
    leave = trainer.model.blocks[0].ffn.leave
    leave.register_forward_hook(lambda module, args, output: output / 0.0)
    with pytest.raises(NonFiniteError, match=r"step 1: .*first in the output of blocks\.0\.ffn\.leave"):
        trainer._update()


def test_a_bad_gradient_is_named_and_changes_nothing(config):
    trainer = trainer_of(config())
    weight = trainer.model.blocks[0].ffn.leave.weight
    weight.register_hook(lambda gradient: gradient * float("nan"))
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    with pytest.raises(NonFiniteError, match=r"step 1: the gradient of blocks\.0\.ffn\.leave\.weight is not finite"):
        trainer._update()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert trainer.at.step == 0


def test_bad_weights_are_not_saved(config, tmp_path, monkeypatch):
    """An optimizer whose result is not finite is caught before a checkpoint is written."""
    before = torch.optim.AdamW.step

    def explode(optimizer: torch.optim.AdamW) -> None:
        before(optimizer)
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0][0, 0] = float("inf")

    monkeypatch.setattr(torch.optim.AdamW, "step", explode)
    with pytest.raises(NonFiniteError, match=r"step 1: embedding.weight is not finite"):
        start_run(config(save_every=1), tmp_path / "run", Screen(quiet=True))
    assert checkpoint_steps(tmp_path / "run/checkpoints") == []


def test_bfloat16_trains_with_float32_weights(config, tmp_path):
    outcome = start_run(config(precision="bfloat16", steps=3), tmp_path / "run", Screen(quiet=True))
    exact = start_run(config(steps=3), tmp_path / "exact", Screen(quiet=True))
    assert outcome.valid["loss"] != exact.valid["loss"]
    assert outcome.valid["loss"] == pytest.approx(exact.valid["loss"], rel=0.02)
    weights = read_checkpoint(tmp_path / "run/checkpoints/step-3").model
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_compile_trains_to_the_same_loss(config, tmp_path):
    plain = start_run(config(model={"dropout": 0.0}), tmp_path / "plain", Screen(quiet=True))
    compiled = start_run(config(model={"dropout": 0.0}, compile=True), tmp_path / "compiled", Screen(quiet=True))
    assert compiled.valid["loss"] == pytest.approx(plain.valid["loss"], rel=1e-4)
