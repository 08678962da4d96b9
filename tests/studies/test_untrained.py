"""Studies without training: each record is made once and identifies itself."""

import pytest

from linnet.cli.app import run_app as linnet
from linnet.registry import STUDY

COMPUTED = [name for name in STUDY.names() if STUDY[name].kind == "computed"]


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_studies(name, monkeypatch, tmp_path, capsys):
    small = {"tokens": 48, "head_dim": 8, "seeds": 1, "calibration_tokens": 32}
    monkeypatch.setattr(STUDY[name], "settings", small)
    monkeypatch.setattr(STUDY[name], "sigmas", (0.8, 1.2), raising=False)
    monkeypatch.setattr(STUDY[name], "widths", (8,), raising=False)
    results = tmp_path / name
    assert linnet(["reproduce", name, "--results", str(results)]) == 0
    (record,) = STUDY[name]().read(results)
    assert (record["study"], record["kind"], record["schema"]) == (name, "computed", 2)
    assert (record["settings"], record["command"]) == (small, f"linnet reproduce {name}")
    assert "1 of 1 runs are done" in capsys.readouterr().out
    written = (results / f"{name}.json").read_bytes()
    assert linnet(["reproduce", name, "--results", str(results), "--scale", "paper"]) == 0  # the same, and done
    assert (results / f"{name}.json").read_bytes() == written
    assert results.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_computed_study_has_no_third_scale(tmp_path, capsys):
    assert linnet(["reproduce", "lln-distribution", "--scale", "papers", "--out", str(tmp_path / "out")]) == 2
    assert "unknown scale 'papers': did you mean 'paper'?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
