"""Instruments during training: recorded by layer and head, cheap, and without effect on the run."""

import json
import time

import pytest
import torch

from linnet.errors import InputError
from linnet.instruments.gradient_deviation import gradient_deviation_of_records
from linnet.screen import Screen
from linnet.storage import read_run_metrics
from linnet.train.optim import finish_optim_gradients, optim_layer_norms
from linnet.train.run import resume_run, start_run

QUIET = Screen(quiet=True)
NAMES = ["entropy", "temperature", "spectral_gap"]


def records(folder, split):
    return [record for record in read_run_metrics(folder / "metrics.jsonl") if record["split"] == split]


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
def test_numbers_by_layer_and_head(config, tmp_path, task):
    start_run(config(task, instruments=NAMES, instrument_every=2), tmp_path / "run", QUIET)
    found = records(tmp_path / "run", "instruments")
    assert [record["step"] for record in found] == [2, 4, 6]
    for record in found:
        assert record["layers"] == ["layer 0 diag", "layer 1 norm"]
        assert ("spectral_gap" in record["values"]) == (task == "masked_lm")  # a causal model has none
        for instrument in record["values"].values():
            for layers in instrument.values():
                assert [len(heads) for heads in layers] == [2, 2]
                assert all(x is None or x >= 0 for heads in layers for x in heads)


def test_a_watched_run_has_the_bits_of_another(config, tmp_path):
    start_run(config(), tmp_path / "plain", QUIET)
    start_run(config(instruments=NAMES, instrument_every=1), tmp_path / "watched", QUIET)
    assert records(tmp_path / "plain", "train") == records(tmp_path / "watched", "train")
    assert records(tmp_path / "plain", "valid") == records(tmp_path / "watched", "valid")
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, two = ((tmp_path / run / "checkpoints/step-6" / name).read_bytes() for run in ("plain", "watched"))
        assert one == two


@pytest.mark.parametrize("stopped", [2, 3, 4, 5])
def test_resume_leaves_the_same_records(config, tmp_path, monkeypatch, stopped):
    """A run that is killed after a checkpoint resumes to the same file, including instruments and gradients."""
    from linnet.train.loop import Trainer

    options = {"instruments": ["entropy"], "instrument_every": 1, "save_every": 1, "log_every": 4}
    start_run(config(**options), tmp_path / "whole", QUIET)
    update = Trainer._update

    def die(self):
        if self.at.step == stopped:
            raise KeyboardInterrupt
        return update(self)

    monkeypatch.setattr(Trainer, "_update", die)
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**options), tmp_path / "killed", QUIET)
    monkeypatch.undo()
    resume_run(tmp_path / "killed", QUIET)
    whole, killed = ((tmp_path / run / "metrics.jsonl").read_bytes() for run in ("whole", "killed"))
    assert whole == killed


def test_gradient_norms_of_all_updates_are_in_the_records(config, tmp_path, monkeypatch):
    from linnet.train import loop

    seen = []

    def spy(model, count, *clips):
        layers = optim_layer_norms(model, count)
        norm = finish_optim_gradients(model, count, *clips)
        seen.append([norm, *layers])
        return norm

    monkeypatch.setattr(loop, "finish_optim_gradients", spy)
    start_run(config(), tmp_path / "run", QUIET)
    found = records(tmp_path / "run", "train")
    assert [record["updates"] for record in found] == [4, 2]
    norms = torch.tensor(seen, dtype=torch.float64)
    assert torch.allclose(torch.tensor(found[0]["grad_means"], dtype=torch.float64), norms[:4].mean(dim=0))
    exact = norms.std(dim=0, correction=0) / norms.mean(dim=0)
    assert torch.allclose(gradient_deviation_of_records(found), exact)
    assert bool((norms[:, 0].square() >= norms[:, 1:].square().sum(dim=1)).all())  # the embedding is in no layer


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["entropi"], "unknown train.instruments 'entropi': did you mean 'entropy'?"),
        (["attention_map"], "does not give one number per head"),
        (["gradient_deviation"], "does not give one number per head"),
    ],
)
def test_an_instrument_that_cannot_be_watched_is_one_line(config, tmp_path, names, line):
    with pytest.raises(InputError, match=line.replace("?", r"\?")):
        start_run(config(instruments=names), tmp_path / "run", QUIET)
    assert not (tmp_path / "run").exists()


def test_an_instrument_that_measures_no_layer_is_reported_at_the_start(config, tmp_path, capsys):
    options = {"instruments": ["spectral_gap", "entropy", "spectral_gap"], "instrument_every": 0}
    start_run(config(**options), tmp_path / "causal", QUIET)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "warning: train.instruments has 'spectral_gap', which records nothing here: the eigenvalues of" in lines[0]
    start_run(config("masked_lm", **options), tmp_path / "masked", QUIET)
    assert capsys.readouterr().err == ""


def test_an_interval_may_change_during_a_run(config, tmp_path):
    start_run(config(steps=4), tmp_path / "run", QUIET)
    text = (tmp_path / "run/config.toml").read_text()
    text = text.replace("steps = 4", "steps = 6").replace("instruments = []", 'instruments = ["entropy"]')
    (tmp_path / "run/config.toml").write_text(text)
    resume_run(tmp_path / "run", QUIET)
    assert [record["step"] for record in records(tmp_path / "run", "instruments")] == [6]
    assert json.loads(json.dumps(records(tmp_path / "run", "instruments")))[0]["values"]["entropy"]["bits"]


def test_it_costs_little(tmp_path):
    """For a small model at the default interval, they take less than a twentieth of the time."""
    from linnet.config import load_recipe_config
    from linnet.train.loop import Trainer
    from linnet.train.run import Run

    recipe = load_recipe_config("smoke", ["train.instruments=['entropy', 'temperature', 'spectral_gap']"])
    run = Run(recipe, None, QUIET, tmp_path)
    trainer = Trainer(run.config, run.task, run.model, tmp_path, {})

    def cost(work):
        work()
        start = time.process_time()
        for _ in range(3):
            work()
        return (time.process_time() - start) / 3

    update, reading = cost(trainer._update), cost(lambda: trainer.watch.read(trainer.model))
    assert reading < 0.05 * recipe.train.instrument_every * update
