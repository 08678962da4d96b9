"""Sharded checkpoints: every kind of damage is refused with one line that names a file, and an older one is used."""

import hashlib
import json
import shutil
import threading

import pytest
import torch

from linnet.cli.app import run_app
from linnet.errors import LinnetError
from linnet.storage import CheckpointError, Shard, newest_checkpoint, read_checkpoint, save_sharded_checkpoint
from linnet.storage import shards as storage_shards
from linnet.storage.checkpoint import manifest_bytes
from linnet.storage.repair import repair_run

SIZES = {"w": (8, 3), "b": (6,)}
WORLD = 2


def save_parts(folder, step, value=1.0):
    """A checkpoint whose two ranks are two threads; returns what each of them raised."""
    meeting, told, raised = threading.Barrier(WORLD), [""] * WORLD, [None] * WORLD

    def rank(number):
        def share(text):
            told[number] = text
            meeting.wait(20)
            found = list(told)
            meeting.wait(20)
            return found

        def part(name, size):
            half = size[0] // WORLD
            rows = (number * half, (number + 1) * half)
            whole = torch.arange(torch.Size(size).numel(), dtype=torch.float32).reshape(size) * value
            return Shard(whole[slice(*rows)].clone(), size, rows)

        model = {name: part(name, size) for name, size in SIZES.items()}
        optimizer = {f"exp_avg/{name}": shard for name, shard in model.items()}
        if number == 0:
            model["gain"] = Shard(torch.tensor(value), ())
        position = {"step": step}
        try:
            parts = {"model": model, "optimizer": optimizer}
            save_sharded_checkpoint(folder, step, parts, {"position": position}, number, share)
        except LinnetError as error:
            raised[number] = str(error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(WORLD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def edit(path, change):
    """Change the manifest of a checkpoint; its own SHA-256 is then right again."""
    content = json.loads((path / "manifest.json").read_text())
    del content["sha256"]
    change(content["shards"])
    (path / "manifest.json").write_bytes(manifest_bytes(content))


def flip(path):
    data = bytearray((path / "model-00001.safetensors").read_bytes())
    data[-5] ^= 4
    (path / "model-00001.safetensors").write_bytes(data)


def truncate(path):
    data = (path / "optimizer-00000.safetensors").read_bytes()
    (path / "optimizer-00000.safetensors").write_bytes(data[:-4])


def swap(path):
    first, second, spare = path / "optimizer-00000.safetensors", path / "optimizer-00001.safetensors", path / "x"
    first.rename(spare)
    second.rename(first)
    spare.rename(second)


def reshape(path):
    """The manifest gives a tensor another shape; its own hash is right, and all rows are there."""

    def change(shards):
        a, b = (shards[f"model-0000{rank}.safetensors"]["tensors"]["w"] for rank in range(WORLD))
        a["shape"], b["shape"] = [8, 4], [8, 4]

    edit(path, change)


def replace(path):
    """Tensors of another form, with their right hash and size in the manifest."""
    name = "model-00000.safetensors"
    data = (path / "model-00001.safetensors").read_bytes()
    (path / name).write_bytes(data)
    edit(path, lambda shards: shards[name].update(size=len(data), sha256=hashlib.sha256(data).hexdigest()))


def overlap(path):
    edit(path, lambda shards: shards["model-00001.safetensors"]["tensors"]["w"].update(rows=[3, 8]))


def lose_rows(path):
    edit(path, lambda shards: shards["optimizer-00001.safetensors"]["tensors"].pop("exp_avg/b"))


def rename_out(path):
    edit(path, lambda shards: shards.update({"../model-00001.safetensors": shards.pop("model-00001.safetensors")}))


def edit_text(path):
    file = path / "manifest.json"
    file.write_text(file.read_text().replace('"step":', '"step" :', 1))


DAMAGE = {
    "a flipped bit": (flip, "model-00001.safetensors is damaged: its SHA-256 is not the one in the manifest"),
    "a truncated shard": (truncate, "optimizer-00000.safetensors is damaged: it has "),
    "a missing shard": (
        lambda path: (path / "model-00000.safetensors").unlink(),
        "cannot read {}/model-00000.safetensors: No such file",
    ),
    "an extra shard": (
        lambda path: shutil.copy(path / "model-00001.safetensors", path / "model-00002.safetensors"),
        "model-00002.safetensors does not belong to this checkpoint",
    ),
    "swapped shards": (swap, "optimizer-00000.safetensors is damaged: its SHA-256"),
    "another form": (reshape, "model-00000.safetensors is whole, but was not written by linnet"),
    "tensors of another rank": (replace, "model-00000.safetensors is whole, but was not written by linnet"),
    "overlapping rows": (overlap, "manifest.json is whole, but was not written by linnet: the parts of w do not fit"),
    "missing rows": (
        lose_rows,
        "manifest.json is whole, but was not written by linnet: the parts of exp_avg/b are not",
    ),
    "a shard elsewhere": (rename_out, "manifest.json is whole, but was not written by linnet: shards"),
    "an edited manifest": (edit_text, "manifest.json is damaged"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_one_line_and_an_older_one_is_used(tmp_path, kind, capsys):
    damage, message = DAMAGE[kind]
    (tmp_path / "config.toml").write_text("seed = 0\n")
    for step in (1, 2):
        assert save_parts(tmp_path / "checkpoints", step, float(step)) == [None] * WORLD
    path = tmp_path / "checkpoints/step-2"
    assert read_checkpoint(path).model["w"][7, 2] == 46
    damage(path)
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(path)
    assert message.format(path) in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    warned = []
    found = newest_checkpoint(tmp_path / "checkpoints", warned.append)
    assert (found.step, float(found.model["w"][7, 2]), float(found.model["gain"])) == (1, 23.0, 1.0)
    assert warned == [f"{error.value}; this checkpoint is skipped"]
    for command in ("verify", "doctor"):  # neither changes anything
        assert run_app([command, str(tmp_path)]) == 1
        assert message.format(path) in " ".join(capsys.readouterr().out.split())
    assert repair_run(tmp_path).damaged == {"damaged/step-2": str(error.value)}
    assert newest_checkpoint(tmp_path / "checkpoints", warned.append).step == 1


def test_a_rank_reads_only_its_rows_and_sees_only_their_damage(tmp_path):
    """Ranks tell each other what is damaged, so the rest is another one's to find."""
    save_parts(tmp_path, 1)
    own = {name: (0, size[0] // 2) for name, size in SIZES.items()}
    rows = {**own, **{f"exp_avg/{name}": half for name, half in own.items()}}
    flip(tmp_path / "step-1")
    found = read_checkpoint(tmp_path / "step-1", rows=rows)
    assert found.model["w"].tolist() == torch.arange(12.0).reshape(4, 3).tolist()
    damage = "another rank's shard is damaged"
    answers = iter((["[1]", "[1]"], ["", damage]))
    warned = []
    assert newest_checkpoint(tmp_path, warned.append, rows=rows, share=lambda text: next(answers)) is None
    assert warned == [f"{damage}; this checkpoint is skipped"]


@pytest.mark.parametrize("failing", range(WORLD))
def test_a_failure_of_one_rank_leaves_nothing(tmp_path, monkeypatch, failing):
    """The other rank may still be writing: rank 0 removes the files only after both have stopped."""
    save_parts(tmp_path, 1)
    write = storage_shards.write_new_file

    def full(path, parts):
        if path.name == f"optimizer-0000{failing}.safetensors":
            raise OSError(28, "No space left on device")
        return write(path, parts)

    monkeypatch.setattr(storage_shards, "write_new_file", full)
    line = f"cannot write {tmp_path}/step-2: No space left on device"
    assert save_parts(tmp_path, 2) == [line] * WORLD
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
