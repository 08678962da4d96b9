"""Dry runs; those of every recipe are in `test_recipes.py`."""

from linnet.train.dry_run import dry_run
from linnet.train.run import start_run
from tests.train.test_run import QUIET


def test_a_dry_run_writes_nothing(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = config().data.model_copy(update={"cache": str(tmp_path / "cache")})
    plan = dry_run(config().model_copy(update={"data": data}), QUIET)
    assert list(tmp_path.iterdir()) == []
    assert plan["tokens"] == 6 * 2 * 2 * 24
    assert plan["config"]["model"]["vocab_size"] == 261
    model = start_run(config(steps=2), tmp_path / "run", QUIET)
    assert plan["parameters"] == model.parameters
