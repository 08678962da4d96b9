"""Checkpoints whose hashes are right but whose content linnet never writes are refused in one line, and never hang."""

import hashlib
import json
import os
import shutil
import signal

import pytest
import torch

from linnet.storage.checkpoint import (
    FILES,
    MANIFEST,
    CheckpointError,
    manifest_bytes,
    newest_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from tests.storage.faults import one_line, save

ENTRY = {"size": 3, "sha256": "0" * 64}


@pytest.fixture(autouse=True)
def _in_time():
    """A test that hangs fails."""
    signal.alarm(60)
    yield
    signal.alarm(0)


def refused(path, named):
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    assert named in one_line(error)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"step": True}, "step"),
        ({"step": 1.0}, "step"),
        ({"step": -1}, "step"),
        ({"format": "linnet-checkpoint-2"}, "format"),
        ({"more": 1}, "more"),
        ({"tied": {"model": {}}}, "tied.optimizer"),
        ({"tied": {"model": {"a": 1}, "optimizer": {}}}, "tied.model.a"),
        ({"tied": []}, "tied"),
        ({"files": dict.fromkeys(FILES[:2], ENTRY)}, "files.state.json"),
        ({"files": {name: {**ENTRY, "size": -1} for name in FILES}}, "files.model.safetensors.size"),
        ({"files": {name: {**ENTRY, "sha256": "x"} for name in FILES}}, "files.model.safetensors.sha256"),
        ({"files": {name: {**ENTRY, "size": 2**40} for name in FILES}}, "files: state.json has 1,099,511,627,776"),
    ],
)
def test_an_intact_manifest_with_wrong_content(tmp_path, change, named):
    path = save(tmp_path, 1)
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["sha256"]
    (path / MANIFEST).write_bytes(manifest_bytes({**manifest, **change}))
    refused(path, f"{path / MANIFEST} is whole, but was not written by linnet: {named}")


POSITION = {"step": 3, "tokens": 9, "evaluated": 2, "best_step": 2, "best_loss": 0.5}


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({"position": {**POSITION, "step": 4}}, "position.step is 4, in the manifest it is 3"),
        ({"position": {**POSITION, "step": True}}, "position.step"),
        ({"position": {**POSITION, "step": 3.0}}, "position.step"),
        ({"position": {**POSITION, "tokens": -1}}, "position.tokens"),
        ({"position": {**POSITION, "more": 1}}, "position.more"),
        ({"position": {**POSITION, "evaluated": 4}}, "is beyond the step"),
        ({"position": {**POSITION, "best_step": 3}}, "is beyond the step"),
        ({"position": {**POSITION, "best_loss": None}}, "must be set together"),
        ({"position": {**POSITION, "norms": [1.0]}}, "norms and squares"),
        ({"position": {**POSITION, "norms": ["x"]}}, "position.norms.0"),
        ({"position": 3}, "position"),
        ({"data": {"train": 3}}, "data.train"),
        ({"data": []}, "data"),
        ({"versions": ["x"]}, "versions"),
        ({"settings": "x"}, "settings"),
        ({"threads": "1"}, "threads"),
        ({"metrics": {"size": 1}}, "metrics.sha256"),
    ],
)
def test_a_state_that_is_whole_and_wrong(tmp_path, state, named):
    path = save_checkpoint(tmp_path, 3, {"w": torch.ones(1)}, {}, state)
    refused(path, named)
    warnings = []
    assert newest_checkpoint(tmp_path, warnings.append) is None
    assert len(warnings) == 1


@pytest.mark.parametrize("raw", [b"[]", b"3", b"[" * 100_000, b"{", b"\xff", b'{"position": NaN}'])
def test_a_state_that_is_not_a_table(tmp_path, raw):
    path = save(tmp_path, 1)
    rewrite(path, "state.json", raw)
    refused(path, "state.json is whole, but was not written by linnet")


@pytest.mark.parametrize("raw", [b"", b"\2\0\0\0\0\0\0\0{}more", b"\x80\x04."])
@pytest.mark.parametrize("name", FILES[:2])
def test_tensors_that_are_none(tmp_path, name, raw):
    path = save(tmp_path, 1)
    rewrite(path, name, raw)
    refused(path, f"{name} is whole, but was not written by linnet")


def rewrite(path, name, raw):
    """Replace a file and its entry in the manifest."""
    (path / name).write_bytes(raw)
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["sha256"]
    manifest["files"][name] = {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
    (path / MANIFEST).write_bytes(manifest_bytes(manifest))


def test_keys_of_a_later_linnet_are_ignored(tmp_path):
    path = save_checkpoint(tmp_path, 3, {}, {}, {"position": POSITION, "invented": {"x": [1]}})
    assert read_checkpoint(path).position.step == 3


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
@pytest.mark.parametrize("optimizer", [True, False])
def test_pipes_devices_and_folders_are_refused_at_once(tmp_path, name, optimizer):
    def pipe(path):
        os.mkfifo(path)

    def endless(path):
        path.symlink_to("/dev/zero")

    for place, make in enumerate((pipe, endless, lambda path: path.mkdir())):
        path = save(tmp_path / str(place), 1)
        (path / name).unlink()
        make(path / name)
        with pytest.raises(CheckpointError) as error:
            read_checkpoint(path, optimizer)
        what = "a symbolic link" if make is endless else "not a regular file"
        assert one_line(error) == f"cannot read {path / name}: it is {what}"


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_a_link_to_a_regular_file_is_refused(tmp_path, name):
    path = save(tmp_path / "run", 1)
    shutil.move(path / name, tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    assert one_line(error) == f"cannot read {path / name}: it is a symbolic link"


def test_a_link_to_a_checkpoint_is_skipped(tmp_path):
    save(tmp_path / "run", 1)
    shutil.move(save(tmp_path / "run", 2), tmp_path / "elsewhere")
    (tmp_path / "run/step-2").symlink_to(tmp_path / "elsewhere")
    said = []
    assert newest_checkpoint(tmp_path / "run", said.append).step == 1
    assert said == [f"{tmp_path}/run/step-2 is a symbolic link; this checkpoint is skipped"]


def test_a_file_that_is_not_wanted_is_not_read(tmp_path):
    path = save(tmp_path, 1)
    size = (path / FILES[1]).stat().st_size
    (path / FILES[1]).write_bytes(b"\0" * size)
    read_checkpoint(path, optimizer=False)
    refused(path, FILES[1])
    (path / FILES[1]).write_bytes(b"\0" * (size - 1))
    with pytest.raises(CheckpointError, match="is damaged: it has"):
        read_checkpoint(path, optimizer=False)


def test_a_key_that_occurs_twice_is_refused(tmp_path):
    """Readers of JSON disagree about which one counts."""
    path = save(tmp_path, 3)
    data = (path / "state.json").read_bytes().rstrip()[:-1] + b', "step": 4}'
    (path / "state.json").write_bytes(data)
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest["files"]["state.json"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    del manifest["sha256"]
    (path / MANIFEST).write_bytes(manifest_bytes(manifest))
    refused(path, "a name occurs twice")
