"""`linnet verify`: every kind of damage is found and named, and an intact run or export passes."""

import json
import shutil

import pytest

from linnet.cli.app import run_app as linnet


@pytest.fixture
def folders(trained, tmp_path, capfd):
    """A run with checkpoints of steps 5 and 10, and the model exported from it."""
    shutil.copytree(trained, tmp_path / "run")
    assert linnet(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")]) == 0
    capfd.readouterr()
    return tmp_path


def verify(folder, capfd):
    """The exit code, and for each group of files its error, or an empty string."""
    code = linnet(["verify", str(folder), "--json"])
    answer = json.loads(capfd.readouterr().out)
    assert answer["ok"] == (code == 0) == all(check["ok"] for check in answer["checks"])
    return code, {check["name"]: "" if check["ok"] else check["found"] for check in answer["checks"]}


def test_whole_folders(folders, capfd):
    before = {path: path.read_bytes() for path in folders.rglob("*") if path.is_file()}
    groups = ["checkpoints/step-5", "checkpoints/step-10", "metrics.jsonl", "timings.jsonl", "environment.json"]
    groups += [".lock", "tokenizer.json"]
    assert verify(folders / "run", capfd) == (0, dict.fromkeys(groups, ""))
    groups = ["config.json, model.safetensors", "tokenizer.json"]
    assert verify(folders / "model", capfd) == (0, dict.fromkeys(groups, ""))
    assert {path: path.read_bytes() for path in folders.rglob("*") if path.is_file()} == before
    assert linnet(["verify", str(folders / "run")]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 8
    assert "4 files, " in lines[1]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("run/checkpoints/step-5/model.safetensors", "checkpoints/step-5"),
        ("run/checkpoints/step-5/optimizer.safetensors", "checkpoints/step-5"),
        ("run/checkpoints/step-10/state.json", "checkpoints/step-10"),
        ("run/checkpoints/step-10/manifest.json", "checkpoints/step-10"),
        ("run/metrics.jsonl", "metrics.jsonl"),
        ("run/timings.jsonl", "timings.jsonl"),
        ("run/environment.json", "environment.json"),
        ("run/tokenizer.json", "tokenizer.json"),
        ("model/config.json", "config.json, model.safetensors"),
        ("model/model.safetensors", "config.json, model.safetensors"),
        ("model/tokenizer.json", "tokenizer.json"),
    ],
)
def test_a_flipped_bit_and_a_missing_file_are_found(folders, capfd, name, group):
    path = folders / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :])
    code, found = verify(folders / name.split("/")[0], capfd)
    assert code == 1
    assert path.name in found[group]
    path.unlink()
    if path.name == "config.json":
        assert linnet(["verify", str(path.parent)]) == 2
    else:
        code, found = verify(folders / name.split("/")[0], capfd)
        assert code == 1
        assert found[group]


def test_a_run_without_a_checkpoint_and_a_folder_that_is_not_a_run(folders, capfd):
    shutil.rmtree(folders / "run/checkpoints")
    code, found = verify(folders / "run", capfd)
    assert (code, found["checkpoints"]) == (0, "")
    assert linnet(["verify", str(folders)]) == 2
    assert "is neither a run (config.toml) nor a model (config.json)" in capfd.readouterr().err
    assert linnet(["verify", str(folders / "nothing")]) == 2


def test_the_pretraining_is_verified_too(folders, capfd):
    shutil.copytree(folders / "run", folders / "run/pretrain")
    code, found = verify(folders / "run", capfd)
    assert (code, len(found)) == (0, 14)
    (folders / "run/pretrain/checkpoints/step-5/state.json").unlink()
    code, found = verify(folders / "run", capfd)
    assert (code, [name for name, fault in found.items() if fault]) == (1, ["pretrain/checkpoints/step-5"])


def test_an_edited_configuration_and_a_foreign_lock_are_named(folders, capfd):
    config = folders / "run/config.toml"
    config.write_text(config.read_text().replace("steps = 10", "steps = 12"))
    assert linnet(["verify", str(folders / "run")]) == 0
    assert "config.toml has been edited since the run began" in capfd.readouterr().out
    (folders / "run/.lock").write_text("my notes")
    code, found = verify(folders / "run", capfd)
    assert code == 1
    assert found[".lock"].endswith("is not a lock of linnet: remove it if no process uses the run")


def test_a_torn_line_after_the_last_checkpoint_is_no_damage(folders, capfd):
    """A kill leaves such lines, and `resume` drops them."""
    for name in ("metrics.jsonl", "timings.jsonl"):
        with (folders / "run" / name).open("a") as file:
            file.write('{"step": 11, "sp')
    code, found = verify(folders / "run", capfd)
    assert code == 0, found


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "environment.json", "checkpoints"])
def test_links_are_refused_by_every_command(folders, capfd, name):
    """What a link leads to is not in the run, so it may change, and `rm -r` would leave it."""
    path = folders / "run" / name
    path.rename(folders / "elsewhere")
    path.symlink_to(folders / "elsewhere")
    for command in ("verify", "evaluate", "resume", "report"):
        assert linnet([command, str(folders / "run")]) == 1
        assert capfd.readouterr().err == (
            f"linnet: {path} is a symbolic link: the parts of a run must be in its folder\n"
        )
