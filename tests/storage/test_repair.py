"""A broken run folder is put in order: leftovers go, damaged checkpoints are set aside, the rest stays as it is."""

import json

import pytest

from linnet.cli.app import run_app
from linnet.errors import InputError, LinnetError
from linnet.storage import MetricsLog, save_checkpoint
from linnet.storage.repair import repair_run
from tests.storage.faults import contents, save


def test_damaged_checkpoints_are_set_aside_and_leftovers_removed(tmp_path, capsys):
    (tmp_path / "config.toml").write_text("seed = 0\n")
    checkpoints = tmp_path / "checkpoints"
    for step in (1, 2, 3):
        save(checkpoints, step)
    left = checkpoints / ".linnet-step-4-999999999-0123abcd.tmp"  # no process has such a number
    left.mkdir()
    whole = contents(checkpoints / "step-2")
    for step in (1, 3):
        (checkpoints / f"step-{step}/model.safetensors").write_bytes(b"damage")
    broken = contents(checkpoints / "step-3")
    found = repair_run(tmp_path)
    assert found.removed == [f"checkpoints/{left.name}"]
    assert list(found.damaged) == ["damaged/step-1", "damaged/step-3"]
    assert "model.safetensors is damaged" in found.damaged["damaged/step-3"]
    assert (found.steps, found.failure) == ([2], "")
    assert contents(tmp_path / "damaged/step-3") == broken
    assert contents(checkpoints / "step-2") == whole
    assert repair_run(tmp_path) == ([], {}, [2], "", "")
    save(checkpoints, 3)
    (checkpoints / "step-3/manifest.json").unlink()
    assert list(repair_run(tmp_path).damaged) == ["damaged/step-3.1"]
    assert contents(tmp_path / "damaged/step-3") == broken
    assert run_app(["repair", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"intact: step 2\n`linnet resume {tmp_path}` continues from step 2\n"


def test_what_keeps_an_intact_checkpoint_unused_is_said(tmp_path, capsys):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"step": 1, "loss": 2.0})
    save_checkpoint(tmp_path / "checkpoints", 1, {}, {}, {"metrics": log.mark()})
    log.close()
    config, written = tmp_path / "config.toml", tmp_path / "metrics.jsonl"
    config.write_text("seed = 0\n")
    assert run_app(["repair", str(tmp_path)]) == 0
    capsys.readouterr()
    written.write_text(written.read_text().replace("2.0", "1.0"))
    assert run_app(["repair", str(tmp_path)]) == 1
    assert f"{written} has been changed" in capsys.readouterr().out
    config.write_text("seed = [\n")
    assert run_app(["repair", str(tmp_path), "--json"]) == 1
    assert "is not valid TOML" in json.loads(capsys.readouterr().out)["obstacle"]


def test_logs_without_a_checkpoint_are_kept_from_a_run_that_starts_over(tmp_path):
    (tmp_path / "config.toml").write_text("seed = 0\n")
    save(tmp_path / "checkpoints", 1)
    (tmp_path / "checkpoints/step-1/model.safetensors").write_bytes(b"damage")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert list(repair_run(tmp_path).damaged) == ["damaged/step-1", "damaged/metrics.jsonl"]
    assert (tmp_path / "damaged/metrics.jsonl").read_text() == '{"step": 1}\n'


def test_a_file_in_place_of_a_folder_is_one_line(tmp_path, capsys):
    (tmp_path / "config.toml").write_text("seed = 0\n")
    (tmp_path / "checkpoints").touch()
    for command in ("repair", "verify", "doctor"):
        assert run_app([command, str(tmp_path)]) == 1
        assert "checkpoints is not a folder: a run has no such part; move it away\n" in capsys.readouterr().err


def test_what_is_no_run_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"is not a run: it has no config.toml"):
        repair_run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_leaves_the_run_through_a_link(tmp_path):
    folder, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()
    save(folder / "checkpoints", 1)
    (folder / "config.toml").write_text("seed = 0\n")
    (folder / "checkpoints/step-1/model.safetensors").write_bytes(b"damage")
    (folder / "damaged").symlink_to(outside)
    with pytest.raises(LinnetError, match=r"^cannot move .*step-1: .*damaged is a symbolic link$"):
        repair_run(folder)
    assert list(outside.iterdir()) == []
    assert (folder / "checkpoints/step-1").is_dir()
