"""Checkpoints: the same state gives the same bytes, and every kind of damage is found before a tensor is parsed."""

import contextlib
import os
import random
import shutil
import time

import pytest
import torch

from linnet.errors import LinnetError
from linnet.storage import (
    CheckpointError,
    checkpoint_steps,
    checkpoints_to_keep,
    clean_temporary_files,
    newest_checkpoint,
    pack_tensors,
    prune_checkpoints,
    read_checkpoint,
    save_checkpoint,
    unpack_tensors,
)
from linnet.storage.checkpoint import FILES, MANIFEST
from tests.storage.faults import contents, in_child, no_warning, one_line, places, save, temporaries, value


def joined(parts):
    return bytearray(b"".join(parts))


def test_round_trip(tmp_path):
    model = {"w": torch.randn(3, 4), "mask": torch.tensor([True, False]), "b": torch.randn(2).bfloat16()}
    optimizer = {"w.exp_avg": torch.randn(3, 4), "t": torch.tensor(7), "rng": torch.get_rng_state()}
    state = {"epoch": 3, "best": {"loss": 0.1 + 0.2, "step": None}, "name": "ü"}
    path = save_checkpoint(tmp_path / "checkpoints", 12, model, optimizer, state)
    assert path == tmp_path / "checkpoints" / "step-12"
    assert sorted(contents(path)) == sorted([*FILES, MANIFEST])
    read = read_checkpoint(path)
    assert (read.path, read.step, read.state) == (path, 12, state)
    for got, want in ((read.model, model), (read.optimizer, optimizer)):
        assert got.keys() == want.keys()
        assert all(torch.equal(got[k], want[k]) and got[k].dtype == want[k].dtype for k in want)
    read.model["w"].add_(1)  # the tensors are writable
    light = read_checkpoint(path, optimizer=False)
    assert light.optimizer == {}
    assert torch.equal(light.model["w"], model["w"])


def test_the_same_state_gives_the_same_bytes(tmp_path):
    first = contents(save(tmp_path / "a", 5))
    time.sleep(0.02)
    assert contents(save(tmp_path / "b", 5)) == first
    read = read_checkpoint(tmp_path / "a" / "step-5")
    backwards = dict(reversed(read.model.items()))
    again = save_checkpoint(tmp_path / "c", 5, backwards, read.optimizer, dict(reversed(read.state.items())))
    assert contents(again) == first


def test_tied_tensors_are_stored_once_and_tied_again(tmp_path):
    weight = torch.randn(100, 8)
    parts, tied = pack_tensors({"head.weight": weight, "embed.weight": weight, "other": weight.clone()})
    data = joined(parts)
    assert tied == {"head.weight": "embed.weight"}
    assert 2 * weight.nbytes < len(data) < 2 * weight.nbytes + 1000
    tensors = unpack_tensors(data, tied)
    assert tensors["head.weight"] is tensors["embed.weight"]
    assert tensors["other"] is not tensors["embed.weight"]
    read = read_checkpoint(save(tmp_path, 1))
    assert read.model["head"].data_ptr() == read.model["embed"].data_ptr()


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"PK\3\4" * 10, b"\xff" * 100, b"\2\0\0\0\0\0\0\0{}more"])
def test_bytes_that_are_not_tensors_are_one_line(data):
    with pytest.raises(LinnetError) as error:
        unpack_tensors(bytearray(data), {})
    assert str(error.value).startswith("these are not tensors that linnet wrote: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("tied", [None, [], ["a"], "b", 3, {"b": "c"}, {"b": None}, {"b": ["a"]}, {"b": 1}])
def test_malformed_ties_are_one_line(tied):
    parts, _ = pack_tensors({"a": torch.ones(2)})
    with pytest.raises(LinnetError) as error:
        unpack_tensors(joined(parts), tied)
    assert "\n" not in str(error.value)


def test_views_are_stored_by_value():
    base = torch.arange(12.0).reshape(3, 4)
    views = {"row": base[1], "transposed": base.T, "flat": base.view(-1), "whole": base, "none": base[:0]}
    parts, tied = pack_tensors(views)
    tensors = unpack_tensors(joined(parts), tied)
    assert all(torch.equal(tensors[name], views[name]) for name in views)


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ({"a": {"loss": float("nan")}}, "state.a.loss is nan"),
        ({"a": [1.0, float("inf")]}, "state.a[1] is inf"),
        ({"a": {3: 1}}, "state.a: the key 3"),
        ({"a": torch.zeros(1)}, "state.a is of type Tensor"),
    ],
)
def test_a_state_that_json_would_change_is_refused(tmp_path, state, named):
    with pytest.raises(LinnetError) as error:
        save_checkpoint(tmp_path, 1, {}, {}, state)
    assert named in one_line(error)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def damage(tmp_path):
    """A good step-1 and, in each call, a fresh step-2 to damage: `check` asserts that the damage is found."""
    good = save(tmp_path / "source", 2)
    folder = tmp_path / "checkpoints"
    save(folder, 1)

    def fresh():
        shutil.rmtree(folder / "step-2", ignore_errors=True)
        shutil.copytree(good, folder / "step-2")
        return folder / "step-2"

    def check(named):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("linnet.storage.checkpoint.unpack_tensors", no_warning)  # found before any tensor is parsed
            with pytest.raises(CheckpointError) as error:
                read_checkpoint(folder / "step-2")
        assert named in one_line(error)
        warnings = []
        assert newest_checkpoint(folder, warnings.append).step == 1
        assert len(warnings) == 1
        assert named in warnings[0]

    return fresh, check


def test_300_flipped_bits_are_found(damage):
    fresh, check = damage
    path, rng = fresh(), random.Random(0)
    for name, where in places(rng, 300):
        data = (path / name).read_bytes()
        flipped = bytearray(data)
        flipped[int(where * len(data))] ^= 1 << rng.randrange(8)
        (path / name).write_bytes(flipped)
        check(name)
        (path / name).write_bytes(data)
    assert read_checkpoint(path).step == 2


def test_300_truncations_are_found(damage):
    fresh, check = damage
    path, rng = fresh(), random.Random(1)
    for name, where in places(rng, 300):
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[: int(where * len(data))])
        check(name)
        (path / name).write_bytes(data)
    assert read_checkpoint(path).step == 2


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_missing_empty_extra_and_longer_files_are_found(damage, name):
    fresh, check = damage
    (fresh() / name).unlink()
    check(name)
    (fresh() / name).write_bytes(b"")
    check(name)
    path = fresh()
    (path / name).write_bytes((path / name).read_bytes() + b"\n")
    check(name)
    path = fresh()
    (path / name).unlink()
    (path / name).mkdir()
    check(name)
    (fresh() / f"{name}.bak").write_bytes(b"x")
    check(f"{name}.bak")


def test_swapped_and_foreign_files_are_found(damage, tmp_path):
    fresh, check = damage
    path = fresh()
    (path / FILES[0]).rename(path / "x")
    (path / FILES[1]).rename(path / FILES[0])
    (path / "x").rename(path / FILES[1])
    check(FILES[0])
    other = save(tmp_path / "other", 3)
    for name in FILES:
        path = fresh()
        shutil.copy(other / name, path / name)
        check(name)
    path = fresh()
    shutil.rmtree(path)
    shutil.copytree(other, path)  # a whole checkpoint under the wrong name
    check("step 3")


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", '{"sha256": 1}', "[" * 100_000, "\x80", '{"sha256": "", "format": NaN}'],
)
def test_a_malformed_manifest_is_found(damage, text):
    fresh, check = damage
    (fresh() / MANIFEST).write_bytes(text.encode("latin-1"))
    check(MANIFEST)


def test_the_newest_checkpoint_is_chosen_by_number(tmp_path):
    assert newest_checkpoint(tmp_path / "absent", no_warning) is None
    assert newest_checkpoint(tmp_path, no_warning) is None
    for step in (10, 9, 100):
        save(tmp_path, step)
    for name in ("step-0200", "step-x", "step-300.bak", ".linnet-step-400.tmp"):
        shutil.copytree(tmp_path / "step-9", tmp_path / name)
    assert newest_checkpoint(tmp_path, no_warning).step == 100
    assert checkpoint_steps(tmp_path) == [9, 10, 100]


def test_the_configuration_decides_how_many_are_kept(tmp_path):
    for step in (5, 10, 15, 20, 25):
        save(tmp_path, step)
    assert checkpoints_to_keep(tmp_path, 25, [5], last=1) == {5, 25}
    assert checkpoints_to_keep(tmp_path, 25, (), last=3) == {15, 20, 25}
    assert checkpoints_to_keep(tmp_path, 25, (), last=1, every=10) == {10, 20, 25}
    assert checkpoints_to_keep(tmp_path, 25, (), last=100) == {5, 10, 15, 20, 25}


def test_the_last_two_and_the_best_are_kept(tmp_path):
    for step in (5, 10, 15, 20, 25):
        save(tmp_path, step)
    assert checkpoints_to_keep(tmp_path, 25, ()) == {20, 25}
    prune_checkpoints(tmp_path, checkpoints_to_keep(tmp_path, 25, best=[10]))
    assert checkpoint_steps(tmp_path) == [10, 20, 25]
    save(tmp_path, 22)  # resumed from 20 since 25 was damaged
    prune_checkpoints(tmp_path, checkpoints_to_keep(tmp_path, 22, best=[10]))
    assert checkpoint_steps(tmp_path) == [10, 20, 22]
    assert temporaries(tmp_path) == []


def test_a_removal_without_descriptors_is_reported(tmp_path):
    """With a real limit: a process that may open only one more file can rename a folder, but not list it."""
    for step in (1, 2, 3):
        save(tmp_path, step)
    said = tmp_path / "said"
    result = os.open(said, os.O_WRONLY | os.O_CREAT)

    def limited():
        held = []
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        os.close(held.pop())
        os.write(result, prune_checkpoints(tmp_path, {3}).encode())

    os.waitpid(in_child(limited), 0)
    os.close(result)
    assert said.read_text().startswith(f"cannot remove {tmp_path}/.linnet-step-1-")
    assert said.read_text().endswith(": Too many open files")
    assert checkpoint_steps(tmp_path) == [3]
    assert len(temporaries(tmp_path)) == 2
    assert clean_temporary_files(tmp_path) == ""
    assert temporaries(tmp_path) == []


def test_a_checkpoint_set_aside_is_restored(tmp_path):
    (save(tmp_path, 4, value=1.0)).rename(tmp_path / ".linnet-step-4.old")  # killed between the two renames
    clean_temporary_files(tmp_path)
    assert value(newest_checkpoint(tmp_path, no_warning)) == 1.0
    save(tmp_path, 5).rename(tmp_path / ".linnet-step-4.old")  # killed after them
    clean_temporary_files(tmp_path)
    assert value(newest_checkpoint(tmp_path, no_warning)) == 1.0
    assert temporaries(tmp_path) == []


def test_nothing_is_unpickled(tmp_path):
    path = save(tmp_path, 1)
    hostile = b"\x80\x04cposix\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR."
    for name in [*FILES, MANIFEST]:
        data = (path / name).read_bytes()
        (path / name).write_bytes(hostile)
        with pytest.raises(CheckpointError, match=name):
            read_checkpoint(path)
        (path / name).write_bytes(data)
    assert not (tmp_path / "owned").exists()


def test_one_checkpoint_is_kept_for_every_so_many_hours(tmp_path):
    hours = {1: 0.0, 2: 0.5, 3: 1.0, 4: 1.9, 5: 2.5, 6: 2.6}
    for step, hour in hours.items():
        written = 1_000_000 + 3600 * hour
        os.utime(save(tmp_path, step) / MANIFEST, (written, written))
    assert checkpoints_to_keep(tmp_path, 6, (), last=1, hours=1.0) == {1, 3, 5, 6}
    assert checkpoints_to_keep(tmp_path, 6, (), last=1, hours=0.0) == {6}
    assert checkpoints_to_keep(tmp_path, 6, [2, 4], last=1, hours=100.0) == {1, 2, 4, 6}
