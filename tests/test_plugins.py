"""A package of a user's own: its attention is found in every command, and a broken one costs one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from linnet.attention.softmax import SoftmaxAttention
from linnet.registry import ATTENTION


@ATTENTION.add("mine")
class Mine(SoftmaxAttention):
    what = "an attention of my own"
"""


@pytest.fixture
def linnet_with(tmp_path):
    """Run a command beside installed packages of these names and modules."""

    def run(command, **modules):
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
            about = tmp_path / f"{name}-1.0.dist-info"
            about.mkdir(exist_ok=True)
            (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            (about / "entry_points.txt").write_text(f"[linnet.plugins]\n{name} = {name}\n")
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        words = [sys.executable, "-m", "linnet", *command]
        return subprocess.run(
            words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False
        )

    return run


def test_an_attention_of_another_package_is_found(linnet_with, tmp_path):
    listed = linnet_with(["list", "attention", "--json"], mine_package=MODULE)
    (mine,) = (row for row in json.loads(listed.stdout) if row["name"] == "mine")
    assert mine["what"] == "an attention of my own" and listed.stderr == ""
    sets = [f"--set={each}" for each in ('model.layers=["mine"]', "train.steps=1", "train.warmup=0", "train.batch=2")]
    sets.append("--set=model.preset=vanilla_lm_small")
    trained = linnet_with(["train", "smoke", "--out", str(tmp_path / "run"), *sets, "--json"])
    assert trained.returncode == 0, trained.stderr
    assert linnet_with(["generate", str(tmp_path / "run"), "--prompt", "a"]).returncode == 0


def test_the_task_and_the_study_of_the_pages_work_in_a_package(linnet_with, tmp_path):
    """The code of docs/adding_a_task.md and docs/adding_a_study.md, installed as a module each."""
    pages = (Path(__file__).parent.parent / "docs" / f"adding_a_{kind}.md" for kind in ("task", "study"))
    task, study = ((page.read_text().split("```python\n")[1].partition("```")[0]) for page in pages)
    task, study = (text.rpartition("\nassert ")[0] for text in (task, study))
    recipe = tmp_path / "copy.toml"
    recipe.write_text(
        'task = "copy"\n[model]\npreset = "norm_lm_small"\nlayers = ["norm"]\nwidth = 32\nheads = 2\nffn_width = 32\n'
        "[train]\nsteps = 2\nbatch = 8\nwarmup = 1\neval_every = 2\n"
    )
    trained = linnet_with(["train", str(recipe), "--out", str(tmp_path / "run")], copy_task=task, block_study=study)
    assert trained.returncode == 0, trained.stderr
    assert "accuracy" in (tmp_path / "run" / "metrics.jsonl").read_text()
    planned = json.loads(linnet_with(["reproduce", "recall-blocks", "--dry-run", "--json"]).stdout)
    assert len(planned) == 4


def test_a_broken_plug_in_costs_one_line(linnet_with):
    done = linnet_with(["list", "tasks"], broken_package="import nothing_of_this_name")
    assert done.returncode == 0 and "causal_lm" in done.stdout
    said = "linnet: warning: plug-in broken_package of broken_package cannot be imported: ModuleNotFoundError:"
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1
