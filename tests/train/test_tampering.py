"""Run folders that somebody else has changed: files that do not belong together are refused in one line."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch

from linnet.errors import InputError, LinnetError
from linnet.models.loading import load_model
from linnet.ops.backend import no_cpu_backend
from linnet.storage import checkpoint_steps, read_checkpoint, read_run_metrics, save_checkpoint
from linnet.train.run import evaluate_run, resume_run, start_run
from tests.train.test_run import QUIET, Listening, edit


@pytest.fixture(autouse=True)
def _in_time():
    """A test that hangs fails."""
    signal.alarm(120)
    yield
    signal.alarm(0)


@pytest.fixture
def run(config, tmp_path):
    """A run of two steps, with its configuration raised to four."""
    start_run(config(steps=2, save_every=1, log_every=1, eval_every=1), tmp_path / "run", QUIET)
    edit(tmp_path / "run", "steps = 2", "steps = 4")
    return tmp_path / "run"


def craft(folder: Path, change) -> None:
    """Rewrite the newest checkpoint with changes and correct hashes, and remove the others."""
    *others, newest = checkpoint_steps(folder / "checkpoints")
    old = read_checkpoint(folder / f"checkpoints/step-{newest}")
    model, optimizer, state = dict(old.model), dict(old.optimizer), dict(old.state)
    change(model, optimizer, state)
    save_checkpoint(folder / "checkpoints", newest, model, optimizer, state)
    for step in others:
        shutil.rmtree(folder / f"checkpoints/step-{step}")


def drop_optimizer(model, optimizer, state):
    optimizer.clear()


def drop_one_moment(model, optimizer, state):
    for name in [name for name in optimizer if name.endswith("/embedding.weight")]:
        del optimizer[name]


def adam_of_another_step(model, optimizer, state):
    for name in optimizer:
        if name.startswith("step/"):
            optimizer[name] = torch.tensor(1e9)


def whole_adam_steps(model, optimizer, state):
    for name in optimizer:
        if name.startswith("step/"):
            optimizer[name] = optimizer[name].long()


def half_moments(model, optimizer, state):
    for name in optimizer:
        if name.startswith("exp_avg/"):
            optimizer[name] = optimizer[name].bfloat16()


def bool_weights(model, optimizer, state):
    for name in model:
        model[name] = model[name].bool()


def double_weights(model, optimizer, state):
    for name in model:
        model[name] = model[name].double()


def another_position(model, optimizer, state):
    state["position"] = {**state["position"], "step": 1}


def no_position(model, optimizer, state):
    del state["position"]


def odd_position(model, optimizer, state):
    state["position"] = {**state["position"], "momentum": 3}


def no_data(model, optimizer, state):
    del state["data"]


def odd_settings(model, optimizer, state):
    state["settings"] = {**state["settings"], "model": 3}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (drop_optimizer, "the checkpoint's optimizer does not fit this model: the state of .* differs"),
        (drop_one_moment, "the checkpoint's optimizer does not fit this model: the state of embedding.weight differs"),
        (adam_of_another_step, r"the checkpoint's optimizer is not of step 2: .* has had 1e\+09 updates"),
        (whole_adam_steps, "the checkpoint's optimizer does not fit this model: the state of .* differs"),
        (half_moments, "the checkpoint's optimizer does not fit this model: the state of .* differs"),
        (bool_weights, r"is of type torch\.bool, in the model torch\."),
        (double_weights, r"is of type torch\.float64, in the model torch\."),
        (another_position, "no checkpoint is intact"),
        (no_position, "state.json has no position: a run cannot resume from it"),
        (odd_position, "no checkpoint is intact"),
        (no_data, r"the data of the run have changed \(train\)"),
        (odd_settings, "has no table `model`|another model"),
    ],
)
def test_a_crafted_checkpoint_is_refused(run, change, line):
    craft(run, change)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(LinnetError, match=line) as error:
        resume_run(run, Listening())
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in before} == before


def test_the_same_content_resumes(run):
    craft(run, lambda model, optimizer, state: None)
    screen = Listening()
    assert resume_run(run, screen).step == 4
    assert screen.warnings == []


@pytest.mark.parametrize("change", [bool_weights, double_weights])
def test_weights_of_another_type_are_not_evaluated(run, change):
    craft(run, change)
    for use in (lambda: evaluate_run(run, "test", QUIET), lambda: load_model(run)):
        with pytest.raises(InputError, match="is of type"):
            use()


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def edited(data: bytes) -> bytes:
    return re.sub(rb'"loss": [0-9]', b'"loss": 0', data, count=1)


@pytest.mark.parametrize(("change", "line"), [(cut, "is damaged: it has"), (edited, "has been changed: its SHA-256")])
def test_metrics_that_are_not_those_of_the_checkpoint_are_refused(run, change, line):
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(change(metrics.read_bytes()))
    before = metrics.read_bytes()
    uses = [lambda: resume_run(run, QUIET), lambda: evaluate_run(run, "test", QUIET)]
    uses.append(lambda: evaluate_run(run, "test", QUIET, "best"))
    for use in uses:
        with pytest.raises(LinnetError, match=rf"metrics\.jsonl {line}") as error:
            use()
        assert "\n" not in str(error.value)
    edit(run, "steps = 4", "steps = 2")  # finished, then
    with pytest.raises(LinnetError, match=rf"metrics\.jsonl {line}"):
        resume_run(run, QUIET)
    assert metrics.read_bytes() == before
    metrics.unlink()
    with pytest.raises(LinnetError, match=r"cannot read .*metrics\.jsonl: No such file"):
        resume_run(run, QUIET)


def test_records_after_the_checkpoint_are_cut(run, config, tmp_path):
    start_run(config(steps=4, save_every=1, log_every=1, eval_every=1), tmp_path / "whole", QUIET)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "split": "valid", "loss": 0.0}\n{"step": 3, "sp')
    resume_run(run, QUIET)
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_a_checkpoint_without_a_mark_of_the_metrics_resumes(run):
    def old(model, optimizer, state):
        for name in ("metrics", "backend", "kernels"):
            del state[name]

    craft(run, old)
    (run / "metrics.jsonl").write_bytes(cut((run / "metrics.jsonl").read_bytes()))
    screen = Listening()
    assert resume_run(run, screen).step == 4
    assert screen.warnings == []


def test_metrics_that_are_a_pipe_are_refused(run):
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(LinnetError, match="it is not a regular file"):
        resume_run(run, QUIET)


def test_another_backend_is_named(run, monkeypatch):
    state = read_checkpoint(run / "checkpoints/step-2").state
    other = "torch" if state["backend"] == "cpu" else "reference"
    monkeypatch.setenv("LINNET_BACKEND", other)
    screen = Listening()
    resume_run(run, screen)
    (line,) = screen.warnings
    assert line == (f"the last bits may differ from an uninterrupted run: backend {state['backend']} then, {other} now")
    assert read_checkpoint(run / "checkpoints/step-4").state["backend"] == other


@pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")
@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
def test_the_seed_decides_the_dropout_on_every_backend(config, tmp_path, monkeypatch, task):
    """Other masks would change the losses by percents, other kernels by rounding errors."""
    losses = {}
    for backend in ("cpu", "torch"):
        monkeypatch.setenv("LINNET_BACKEND", backend)
        settings = config(task, {"options": {"diag": {"dropout": 0.2}}}, steps=4, log_every=1)
        start_run(settings, tmp_path / backend, QUIET)
        losses[backend] = [r["loss"] for r in read_run_metrics(tmp_path / backend / "metrics.jsonl")]
    assert losses["cpu"] == pytest.approx(losses["torch"], rel=1e-4)


def test_other_kernels_are_named(run):
    def change(model, optimizer, state):
        state["kernels"] = "0" * 64

    craft(run, change)
    screen = Listening()
    resume_run(run, screen)
    assert screen.warnings == [
        "the last bits may differ from an uninterrupted run: the kernels have been compiled differently"
    ]


def test_a_lost_tokenizer_is_made_again(config, tmp_path):
    words = config(steps=2).data.model_copy(update={"tokenizer": "word"})
    start_run(config(steps=2).model_copy(update={"data": words}), tmp_path / "run", QUIET)
    file = tmp_path / "run/tokenizer.json"
    before = file.read_bytes()
    file.unlink()
    evaluate_run(tmp_path / "run", "test", QUIET)
    assert file.read_bytes() == before
    file.unlink()
    edit(tmp_path / "run", "steps = 2", "steps = 4")
    resume_run(tmp_path / "run", QUIET)
    assert file.read_bytes() == before


def test_a_tokenizer_that_the_data_do_not_give_again_is_refused(config, tmp_path):
    shutil.copy(config().data.path, tmp_path / "my.txt")
    words = config().data.model_copy(update={"tokenizer": "word", "path": str(tmp_path / "my.txt")})
    start_run(config(steps=2).model_copy(update={"data": words}), tmp_path / "run", QUIET)
    (tmp_path / "run/tokenizer.json").unlink()
    (tmp_path / "my.txt").write_text("another " * 5000)
    with pytest.raises(LinnetError, match=r"the data of the run have changed \(train\)"):
        evaluate_run(tmp_path / "run", "test", QUIET)
    assert not (tmp_path / "run/tokenizer.json").exists()


def test_an_export_is_not_made_without_its_tokenizer(run, tmp_path, capfd):
    from linnet.cli.app import run_app as linnet

    (run / "tokenizer.json").unlink()
    assert linnet(["export", str(run), "--out", str(tmp_path / "out")]) == 1
    assert capfd.readouterr().err == (
        f"linnet: {run}/tokenizer.json is missing: `linnet evaluate {run}` rebuilds it from the data of the run\n"
    )
    assert not (tmp_path / "out").exists()
    evaluate_run(run, "test", QUIET)
    assert linnet(["export", str(run), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert "tokenizer.json" in json.loads(capfd.readouterr().out)["files"]


def test_a_finished_run_is_cleaned_of_files_that_a_kill_left(config, tmp_path):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    left = tmp_path / "run/checkpoints/.linnet-step-1-999999999-0123abcd.tmp"
    left.mkdir()
    held = tmp_path / f"run/.linnet-report.html-{os.getppid()}-0123abcd.tmp"  # another process writes it
    held.touch()
    resume_run(tmp_path / "run", QUIET)
    assert not left.exists()
    assert held.exists()


def test_a_checkpoint_that_cannot_be_removed_is_named_once(config, tmp_path, monkeypatch):
    def full(path, *args, **kwargs):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("shutil.rmtree", full)
    screen = Listening()
    start_run(config(steps=6, save_every=1, eval_every=0), tmp_path / "run", screen)
    (line,) = screen.warnings
    assert line.startswith(f"cannot remove {tmp_path}/run/checkpoints/.linnet-step-1-")
    assert "Too many open files; " in line
    monkeypatch.undo()
    assert list((tmp_path / "run/checkpoints").glob(".linnet-*"))
    edit(tmp_path / "run", "steps = 6", "steps = 7")
    resume_run(tmp_path / "run", QUIET)
    assert not list((tmp_path / "run/checkpoints").glob(".linnet-*"))
