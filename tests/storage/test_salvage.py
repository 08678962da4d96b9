"""What `linnet doctor RUN` finds in broken run folders."""

import tomllib

import pytest

from linnet.errors import InputError
from linnet.storage import MetricsLog, save_checkpoint
from linnet.storage.salvage import salvage_run
from tests.storage.faults import save


@pytest.fixture
def run(tmp_path):
    """A folder with two checkpoints and metrics, as much of a run as storage knows."""
    for step in (1, 2):
        save(tmp_path / "run/checkpoints", step)
    MetricsLog(tmp_path / "run/metrics.jsonl").close()
    (tmp_path / "run/config.toml").write_text("seed = 0\n")
    (tmp_path / "run/environment.json").write_text('{"linnet": "0.1.0"}')
    return tmp_path / "run"


def load(place, step):
    """A model that always loads."""


def wrong(found):
    return [part.name for part in found.parts if not part.ok]


def test_an_intact_run_needs_no_advice(run):
    found = salvage_run(run, load)
    assert wrong(found) == []
    assert found.advice == []


def test_a_damaged_checkpoint_leaves_the_one_before(run):
    (run / "checkpoints/step-2/model.safetensors").write_bytes(b"damage")
    found = salvage_run(run, load)
    assert wrong(found) == ["checkpoints/step-2"]
    assert found.advice == [
        f"`linnet repair {run}` removes leftovers and sets damaged checkpoints aside",
        f"`linnet resume {run}` continues from step 1",
        f"`linnet export {run} --checkpoint 1 --out MODEL` saves the model of step 1",
    ]


def test_without_a_configuration_the_settings_are_printed(run):
    from linnet.models.loading import load_model

    (run / "config.toml").unlink()
    settings = {"seed": 3, "train.lr": 0.1, "model.options": {"block": None, "rates": [1.0, None]}}
    save_checkpoint(run / "checkpoints", 3, {}, {}, {"settings": settings})
    found = salvage_run(run, load_model)
    assert wrong(found) == ["config.toml", "checkpoints/step-1", "checkpoints/step-2", "checkpoints/step-3"]
    assert found.parts[1].found == "all hashes are right; it needs config.toml"
    assert found.advice[0].startswith("write config.toml again")
    written = tomllib.loads("\n".join(found.advice[1:]))
    assert written == {"seed": 3, "train": {"lr": 0.1}, "model": {"options": {"rates": [1.0]}}}


def test_nothing_left(run, tmp_path):
    for step in (1, 2):
        (run / f"checkpoints/step-{step}/manifest.json").unlink()
    (run / "checkpoints/.linnet-step-3-999999999-0123abcd.tmp").mkdir()
    found = salvage_run(run, load)
    assert wrong(found) == ["checkpoints/step-1", "checkpoints/step-2", "leftovers"]
    assert found.advice[-1] == "no checkpoint is intact: start again in another folder"
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError):
            salvage_run(place, load)
