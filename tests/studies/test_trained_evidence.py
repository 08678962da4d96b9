"""Studies of attention and gradients: runs are shared, read once trained, and rendered beside what is computed."""

import json

import pytest

from linnet.cli.app import run as linnet
from linnet.errors import InputError
from linnet.screen import Screen
from linnet.studies import calculations
from linnet.studies.calculations import CALCULATIONS, Calculation, calculate
from linnet.studies.evidence import EVIDENCE
from linnet.studies.results import digest, read_results, render, rendered
from linnet.studies.study import STUDIES, Row, Study, run_study, trials

QUIET = Screen(quiet=True)
SETS = (
    *("task=masked_lm", "data.corpus=text", "data.tokenizer=bytes", "data.context=32", "model.width=16"),
    *("model.heads=2", "model.ffn_width=24", "train.steps=4", "train.warmup=1", "train.log_every=2", "train.batch=2"),
    *("train.eval_batches=1", "train.threads=1", "train.instrument_every=2"),
    'train.instruments=["entropy", "temperature", "spectral_gap"]',
)


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The three studies of trained models, made small: two systems, and one set of runs for all."""
    text = tmp_path / "corpus.txt"
    text.write_text("the cat sat on the mat and looked at the moon\n" * 200)
    for name in ("transnormer-figure2", "transnormer-table2", "lln-training"):
        study = STUDIES[name]
        rows = (Row("vanilla", "vanilla", ('model.layers=["softmax"]',)), Row("lln", "lln", ('model.layers=["lln"]',)))
        small = Study(
            study.title,
            {"cpu": "smoke"},
            {"cpu": "_roberta_small"},
            (*SETS, f"data.path={text}"),
            rows,
            study.shared,
            study.instruments,
            study.maps,
        )
        monkeypatch.setitem(STUDIES, name, small)
    return tmp_path


def test_studies_of_one_set_of_runs(tiny):
    for name in ("transnormer-figure2", "transnormer-table2", "lln-training"):
        results = tiny / f"results-{name}"
        assert run_study(name, "cpu", tiny / "runs", results, QUIET) == 0
        records = read_results(results)
        assert len(records) == 2
        assert str(tiny) not in json.dumps(records)
        page, picture, *maps = render(results, name)
        shown = page.read_text()
        assert rendered(records, picture.name) in shown
        assert "| vanilla |" in shown
        assert all(digest(records).encode() in drawn.read_bytes() for drawn in (picture, *maps))
        assert [path.name for path in maps] == [f"results-{name}-maps.png"] * bool(STUDIES[name].maps)
    assert sorted(path.name for path in (tiny / "runs").iterdir()) == ["lln-seed0", "vanilla-seed0"]  # trained once
    law = (tiny / "results-lln-training.md").read_text()
    assert "spectral gap" in law
    assert "gradient's L2 norm" in (tiny / "results-transnormer-table2.md").read_text()


def test_shared_runs_are_the_same_runs():
    """Of one name, in the studies that share a folder, there is one configuration."""
    found: dict[tuple[str, str], str] = {}
    for study in STUDIES.values():
        for scale in study.recipes if study.shared else ():
            for trial in trials(study, scale):
                config = trial.config.model_dump_json()
                assert found.setdefault((scale, trial.name), config) == config


def test_each_study_of_attention_can_be_shown():
    assert set(EVIDENCE) == set(CALCULATIONS) | {name for name, study in STUDIES.items() if study.instruments}


@pytest.mark.parametrize("name", sorted(CALCULATIONS))
def test_calculations(name, monkeypatch, tmp_path, capsys):
    before = CALCULATIONS[name]
    small = {"tokens": 48, "head_dim": 8, "seeds": 1, "calibration_tokens": 32}
    monkeypatch.setitem(CALCULATIONS, name, Calculation(before.title, small, before.compute))
    monkeypatch.setattr(calculations, "SIGMAS", (0.8, 1.2))
    monkeypatch.setattr(calculations, "WIDTHS", (8,))
    results = tmp_path / name
    assert linnet(["reproduce", name, "--results", str(results)]) == 0
    (record,) = read_results(results)
    assert (record["study"], record["settings"]) == (name, small)
    assert "1 of 1 runs are done" in capsys.readouterr().out
    written = (results / f"{name}.json").read_bytes()
    assert linnet(["reproduce", name, "--results", str(results)]) == 0  # what is there is not done again
    assert (results / f"{name}.json").read_bytes() == written
    assert results.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_calculation_has_no_third_scale(tmp_path, capsys):
    assert linnet(["reproduce", "lln-distribution", "--scale", "papers", "--out", str(tmp_path / "out")]) == 2
    assert "unknown scale 'papers': did you mean 'paper'?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_bad_names_offer_both_kinds(capsys):
    assert linnet(["reproduce", "lln-distributions"]) == 2
    assert "did you mean 'lln-distribution'?" in capsys.readouterr().err
    with pytest.raises(InputError, match="unknown calculation"):
        calculate("nothing", lambda done, total: None)
