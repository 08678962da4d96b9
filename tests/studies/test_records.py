"""Records identify themselves: their study, their kind, the whole model, and the code that made them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import linnet
from linnet.errors import LinnetError
from linnet.models.presets import preset
from linnet.studies import records
from linnet.studies.records import (
    SCHEMA,
    one_line_record_damage,
    read_records,
    record_code_version,
    record_resolved_model,
    stamp_record,
    study_of_record,
)


@pytest.fixture
def fresh():
    record_code_version.cache_clear()
    yield
    record_code_version.cache_clear()


def test_a_record_carries_its_schema_study_kind_and_code():
    found = stamp_record("recall", "trained", "linnet reproduce recall --scale cpu")
    assert (found["schema"], found["study"], found["kind"]) == (2, "recall", "trained")
    assert found["code"] == record_code_version()


@pytest.mark.parametrize(
    ("record", "study"),
    [
        ({"study": "recall"}, "recall"),
        ({"command": "linnet reproduce transnormer-table7"}, "transnormer-table7"),
        ({"command": "linnet reproduce recall --scale cpu"}, "recall"),
        ({"command": "linnet bench ops"}, None),
        ({"rows": [], "tokens": 3}, None),
        ([], None),
    ],
)
def test_an_early_record_names_its_study_in_its_command(record, study):
    assert study_of_record(record) == study


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.usefixtures("fresh")
def test_the_code_is_a_commit_in_a_checkout_and_a_version_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "linnet").mkdir()
    (tmp_path / "recipes").mkdir()
    (tmp_path / "linnet/__init__.py").write_text("")
    monkeypatch.setattr(records, "PACKAGE", tmp_path / "linnet")
    assert record_code_version() == linnet.__version__
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "notes.md").write_text("no code")
    record_code_version.cache_clear()
    assert re.fullmatch(r"[0-9a-f]{40}", record_code_version())
    (tmp_path / "linnet/__init__.py").write_text("changed = True\n")
    record_code_version.cache_clear()
    assert re.fullmatch(r"[0-9a-f]{40}\+changes", record_code_version())
    shutil.rmtree(tmp_path / ".git")
    (tmp_path / ".git").mkdir()  # damaged
    record_code_version.cache_clear()
    assert record_code_version() == linnet.__version__


def test_the_model_has_every_option_of_every_layer():
    found = record_resolved_model(preset("transnormer_t2_lm_small"))
    assert set(found["options"]) == {"diag", "norm"}
    assert found["options"]["norm"]["phi"] == "1+elu"
    assert {"positions", "xnorm"} <= found["options"]["norm"].keys()  # at their defaults
    assert found["options"]["diag"]["block"] == 64
    assert found["ffn_width"] == 512
    both = preset("transnormer_t2_lm_small", layers=["diag+norm", "softmax"])
    assert set(record_resolved_model(both)["options"]) == {"diag", "norm", "softmax"}


def test_damage_is_one_line_that_names_the_places():
    with (
        pytest.raises(LinnetError, match="a or b is damaged: KeyError: 'test'"),
        one_line_record_damage(Path("a"), Path("b")),
    ):
        {}["test"]


@pytest.mark.parametrize("schema", [SCHEMA + 1, 0, "2", None])
def test_a_record_of_a_later_schema_is_one_line(schema, tmp_path):
    record = {**stamp_record("recall", "trained", "linnet reproduce recall --scale cpu"), "schema": schema}
    (tmp_path / "x.json").write_text(json.dumps(record))
    with pytest.raises(LinnetError, match=f"x.json has schema {schema!r}: this linnet reads records up to schema 2"):
        read_records(tmp_path, "recall")
