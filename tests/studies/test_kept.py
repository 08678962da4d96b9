"""The committed runs of the paper's own length: their page, their weights, and that they resume."""

import dataclasses
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import linnet
from linnet.data.lra.listops import FIRST, OPERATORS
from linnet.registry import STUDY, TASK
from linnet.screen import Screen
from linnet.storage import checkpoint_steps, read_checkpoint
from linnet.studies.records import records_sha256
from linnet.studies.trained import check_trained_run
from linnet.studies.unfinished import unfinished_last_step, unfinished_page, unfinished_runs
from linnet.train.check import check_and_read_config, check_resumed_settings
from linnet.train.run import resume_run

KEPT = Path(__file__).parents[2] / "docs/results/lra"
RUNS = sorted(path.parent for path in KEPT.glob("*/config.toml"))


def last(folder: Path) -> Path:
    """The checkpoint from which a run resumes."""
    return folder / "checkpoints" / f"step-{checkpoint_steps(folder / 'checkpoints')[-1]}"


def test_the_committed_page_matches_its_runs() -> None:
    runs = unfinished_runs(KEPT)
    assert [run.name for run in runs] == ["listops-T2-seed0", "listops-vanilla-seed0"]
    assert unfinished_page(runs, "lra.png") in KEPT.with_suffix(".md").read_text()
    assert records_sha256([dataclasses.asdict(run) for run in runs]).encode() in KEPT.with_suffix(".png").read_bytes()


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_the_last_checkpoint_and_the_best_are_kept_and_small(folder: Path) -> None:
    (run,) = (run for run in unfinished_runs(KEPT) if run.name == folder.name)
    best, _ = run.best() or (None, None)
    assert checkpoint_steps(folder / "checkpoints") == sorted({best, unfinished_last_step(run)})
    assert read_checkpoint(last(folder)).state["position"]["best_step"] == best
    for checkpoint in (folder / "checkpoints").iterdir():
        assert sum(path.stat().st_size for path in checkpoint.iterdir()) < 3e6


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_the_command_of_the_page_continues_the_benchmark(folder: Path) -> None:
    """A changed recipe, preset or study would refuse the run, which took days."""
    (study_run,) = STUDY["transnormer-table6"]().study_runs("paper", only=[folder.name])
    check_trained_run(folder, study_run.config)
    check_resumed_settings(folder, read_checkpoint(last(folder)).state, check_and_read_config(folder))


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
@torch.no_grad()
def test_the_weights_know_more_of_new_trees_than_their_outermost_operator(tmp_path: Path, folder: Path) -> None:
    """Compare the loss on trees of another seed with that of the frequencies of each operator's values."""
    model, config = linnet.load_model(folder).eval(), check_and_read_config(folder)
    data = config.data.model_copy(update={"count": 2000, "variant": 1, "cache": str(tmp_path)})
    task = TASK["lra/listops"](config.model_copy(update={"data": data}))
    trees, new = task.splits["train"], np.arange(200)
    operator = trees.tokens[trees.starts[:-1]] - FIRST
    counts = np.ones((len(OPERATORS), 10))
    np.add.at(counts, (operator[200:], trees.labels[200:]), 1)
    share = counts / counts.sum(axis=1, keepdims=True)
    shortcut = -np.log(share[operator[new], trees.labels[new]]).mean()
    parts = task.parts(task.batch("train", new, np.zeros_like(new)))
    assert sum(task.measure(model, part)["loss"] for part in parts) / 200 < shortcut - 0.05


@pytest.mark.slow
@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_a_run_resumes_from_its_folder(tmp_path: Path, folder: Path) -> None:
    class Stopping(Screen):
        def say(self, text: str) -> None:
            if text.startswith("step "):
                signal.raise_signal(signal.SIGINT)

    mine = shutil.copytree(folder, tmp_path / folder.name)
    before = (mine / "metrics.jsonl").read_text()
    outcome = resume_run(mine, Stopping(quiet=True))
    assert (outcome.signal, last(folder).name) == (signal.SIGINT, f"step-{outcome.step - 50}")
    assert (mine / "metrics.jsonl").read_text().startswith(before)
