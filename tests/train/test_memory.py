"""A run that needs more memory than the machine has is refused in one line, before anything is built or written."""

import resource
import subprocess
import sys

import pytest

from linnet.cli.app import run_app
from linnet.config import load_recipe_config
from linnet.screen import Screen
from linnet.train import memory
from linnet.train.memory import GIB, least_training_memory, memory_of_device
from linnet.train.run import Run

HUGE = {
    "model.width=9600000": "model.width is 9600000",
    "model.ffn_width=10000000": "model.ffn_width is 10000000",
    "model.vocab_size=1000000000": "model.vocab_size is 1000000000",
    "train.batch=65536 data.context=100000": "train.batch is 65536, data.context 100000",
    "model.preset=performer_lm_small model.options.performer.features=1000000000": "alone is 1000000000 x 24",
}


@pytest.mark.parametrize("sets", HUGE)
def test_a_run_that_cannot_fit_is_refused_in_one_line_and_nothing_is_written(sets, tmp_path, capfd):
    options = [part for text in sets.split() for part in ("--set", text)]
    assert run_app(["train", "smoke", "--out", str(tmp_path / "run"), *options]) == 2
    out, err = capfd.readouterr()
    *progress, line = err.splitlines()
    assert out == "" and all(said.startswith("reading the ") for said in progress)
    assert line.startswith("linnet: the model ") and "this machine has" in line and HUGE[sets] in line
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_only_warns(capfd):
    assert run_app(["train", "smoke", "--dry-run", "--set", "model.width=9600000"]) == 0
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("linnet: warning: the model has ") and "this machine has" in line


def test_too_many_layers_are_refused_at_once(tmp_path, capfd):
    layers = f"model.layers={['norm'] * 10_000}"
    assert run_app(["train", "smoke", "--dry-run", "--set", layers]) == 2
    err = capfd.readouterr().err
    assert err.startswith("linnet: model.layers has 10,000 entries: at most 1,024 are allowed")
    assert err.count("\n") == 1


def test_the_estimate_is_below_what_a_run_takes(tmp_path):
    """The peak of a real run, without what importing takes: the estimate must never refuse what would fit."""
    sets = ["train.steps=2", "train.warmup=0", "train.batch=64", "model.width=256", "train.eval_every=0"]
    program = f"""
from linnet.config import load_recipe_config
from linnet.screen import Screen
from linnet.train.memory import least_training_memory
from linnet.train.run import Run, start_run
start_run(load_recipe_config("smoke", [*{sets}, "train.batch=1"]), {str(tmp_path / "small")!r}, Screen(quiet=True))
status = lambda: (line.split() for line in open("/proc/self/status"))  # ru_maxrss may be that of the parent
peak = lambda: 1024 * next(int(words[1]) for words in status() if words[0] == "VmHWM:")
before = peak()
start_run(load_recipe_config("smoke", {sets}), {str(tmp_path / "run")!r}, Screen(quiet=True))
run = Run(load_recipe_config("smoke", {sets}), None, Screen(quiet=True))
print(least_training_memory(run.task, run.model_config, run.skeleton), peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    estimate, peak = map(int, done.stdout.split())
    assert peak / 20 < estimate < peak


def test_a_limit_on_memory_counts_as_the_machine():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    whole = memory_of_device("cpu")
    resource.setrlimit(resource.RLIMIT_AS, (64 * GIB, hard))
    try:
        assert memory_of_device("cpu") == min(whole, 64 * GIB)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert whole > GIB // 4


def test_the_papers_models_fit_a_machine_of_their_size():
    """155,988,156 parameters with gradients and Adam's moments are 2.3 GiB."""
    config = load_recipe_config("smoke", ["train.batch=1"])
    paper = {"preset": "transnormer_t2_lm", "vocab_size": 267_744}
    run = Run(config.model_copy(update={"model": paper}), None, Screen(quiet=True))
    assert 2.3 * GIB < least_training_memory(run.task, run.model_config, run.skeleton) < 2.6 * GIB
    assert memory.memory_lack(run.task, run.model_config, run.skeleton, 2 * GIB).startswith("the model has 155,988,156")
    assert memory.memory_lack(run.task, run.model_config, run.skeleton, 3 * GIB) is None
