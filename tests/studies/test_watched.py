"""Studies of attention and gradients: their runs are shared, read once trained, and rendered."""

import json

import pytest

from linnet.instruments.plots import BY_LAYER
from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies.base import Request
from linnet.studies.trained import Row, Scale

QUIET = Screen(quiet=True)
NAMES = ("transnormer-figure2", "transnormer-table2", "lln-training")
SETS = (
    *("task=masked_lm", "data.corpus=text", "data.tokenizer=bytes", "data.context=32", "model.width=16"),
    *("model.heads=2", "model.ffn_width=24", "train.steps=4", "train.warmup=1", "train.log_every=2", "train.batch=2"),
    *("train.eval_batches=1", "train.threads=1", "train.instrument_every=2"),
    'train.instruments=["entropy", "temperature", "spectral_gap"]',
)
ROWS = (Row("vanilla", "vanilla", ('model.layers=["softmax"]',)), Row("lln", "lln", ('model.layers=["lln"]',)))


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The studies, made small: two systems, and one set of runs for all."""
    text = tmp_path / "corpus.txt"
    text.write_text("the cat sat on the mat and looked at the moon\n" * 200)
    small = Scale("smoke", "_roberta_small", (*SETS, f"data.path={text}"))
    for name in NAMES:
        monkeypatch.setattr(STUDY[name], "scales", {"cpu": small})
        monkeypatch.setattr(STUDY[name], "rows", ROWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_studies_of_one_set_of_runs(tiny):
    out = tiny / "runs/watched-cpu"
    for name in NAMES:
        study = STUDY[name]()
        report = study.reproduce(Request(), QUIET)
        results = out / f"results-{name}"
        records = study.read(results)
        assert (len(records), report.data["done"], report.data["signal"]) == (2, 2, 0)
        assert str(tiny) not in json.dumps(records)
        shown = results.with_suffix(".md").read_text()
        assert study.rendered(records, f"{results.name}.png") in shown
        assert "| vanilla |" in shown
        assert (report.data["maps"] is not None) == bool(study.map_size)
        assert results.with_name(f"{results.name}-maps.png").exists() == bool(study.map_size)
    trained = sorted(path.name for path in out.iterdir() if path.is_dir() and not path.name.startswith("results"))
    assert trained == ["lln-seed0", "vanilla-seed0"]  # once each
    assert "spectral gap" in (out / "results-lln-training.md").read_text()
    assert "gradient's L2 norm" in (out / "results-transnormer-table2.md").read_text()


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_some_run_is_read_for_each_panel_along_training(scale):
    read = {name for run in STUDY["lln-training"]().study_runs(scale) for name in run.config.train.instruments}
    assert {instrument for _, _, instrument, _ in BY_LAYER[:3]} <= read
