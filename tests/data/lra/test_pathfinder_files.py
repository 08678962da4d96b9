"""Pathfinder on disk: shards that continue after a stop, with any number of processes; the public layout."""

import io
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from linnet.data.lra.pathfinder_files import (
    ABOUT,
    pathfinder_files_sheet,
    read_pathfinder_files,
    read_public_pathfinder_files,
    write_pathfinder_files,
)
from linnet.data.lra.png import encode_png
from linnet.errors import InputError, LinnetError
from linnet.storage import temporary_file_name


def test_an_interrupted_set_is_continued(tmp_path):
    told = []
    write_pathfinder_files(tmp_path / "a", 12, 0, 1, lambda done, total: told.append((done, total)), shard=5)
    whole = read_pathfinder_files(tmp_path / "a")
    assert told == [(0, 12), (5, 12), (10, 12), (12, 12)]
    assert len(whole) == 12
    (tmp_path / "a" / "shard-00000.safetensors").unlink()
    damaged = tmp_path / "a" / "shard-00002.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    before = (tmp_path / "a" / "shard-00001.safetensors").stat().st_mtime_ns
    with pytest.raises(InputError, match=r"shard-00000.safetensors is missing or damaged: `linnet data pathfinder"):
        read_pathfinder_files(tmp_path / "a")
    write_pathfinder_files(tmp_path / "a", 12, 0, 1, shard=5)
    assert (tmp_path / "a" / "shard-00001.safetensors").stat().st_mtime_ns == before
    assert np.array_equal(read_pathfinder_files(tmp_path / "a").tokens, whole.tokens)


def test_other_pictures_are_not_mixed_in(tmp_path):
    write_pathfinder_files(tmp_path, 3, 0, 1)
    for count, seed in ((3, 1), (4, 0)):
        with pytest.raises(InputError, match="holds other images"):
            write_pathfinder_files(tmp_path, count, seed, 1)
    right = json.loads((tmp_path / ABOUT).read_text())
    unnamed = {key: value for key, value in right.items() if key != "rules"}
    changed = [{**right, key: value} for key, value in (("count", -5), ("shard", 0), ("seed", "0"), ("rules", ""))]
    for wrong in ({}, [], unnamed, *changed):
        (tmp_path / ABOUT).write_text(json.dumps(wrong))
        with pytest.raises(InputError, match="does not describe images that this version of linnet generates"):
            read_pathfinder_files(tmp_path)


def test_a_finished_set_is_not_written_to(tmp_path, monkeypatch):
    """So it can be in a read-only folder."""
    write_pathfinder_files(tmp_path, 3, 0, 1)

    def refuse(path, data):
        raise LinnetError(f"cannot write {path}: Read-only file system")

    monkeypatch.setattr("linnet.storage.files.write_file_atomic", refuse)
    write_pathfinder_files(tmp_path, 3, 0, 1)


def test_two_processes_write_the_same_as_one(tmp_path):
    for workers in (1, 2):
        write_pathfinder_files(tmp_path / str(workers), 12, 4, workers, shard=5)
    one, two = (read_pathfinder_files(tmp_path / str(workers)) for workers in (1, 2))
    assert np.array_equal(one.tokens, two.tokens)
    assert np.array_equal(one.labels, two.labels)


@pytest.mark.timeout(120)
def test_workers_end_with_a_process_that_is_killed(tmp_path):
    """Their pipe closes when the last of them exits, so reading it waits for all."""
    code = "from linnet.data.lra.pathfinder_files import *"
    code += f"; write_pathfinder_files(Path({str(tmp_path)!r}), 3000, 0, 2, shard=9)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        while not list(tmp_path.glob("shard-*")):
            assert process.poll() is None
            time.sleep(0.1)
        process.kill()
        assert process.stdout is not None
        assert process.stdout.read() == b""


def test_files_that_another_process_is_writing_stay(tmp_path):
    fresh, old = (temporary_file_name(tmp_path / f"shard-0000{i}.safetensors") for i in (7, 8))
    for path in (fresh, old):
        path.write_bytes(b"a part of it")
    os.utime(old, (0, 0))
    write_pathfinder_files(tmp_path, 3, 0, 1)
    assert fresh.exists()
    assert not old.exists()


@pytest.fixture
def public(tmp_path):
    """Three images in the layout of the public release, one of them an empty file."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (3, 32, 32), dtype=np.uint8)
    for folder, names in (("0", ("sample_0.png", "sample_1.png")), ("7", ("sample_0.png",))):
        (tmp_path / "imgs" / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / "imgs" / folder / name).write_bytes(encode_png(pictures[(folder == "7") + int(name[7])]))
    (tmp_path / "imgs" / "0" / "sample_9.png").write_bytes(b"")
    (tmp_path / "metadata").mkdir()
    text = "imgs/0 sample_0.png 0 1 1.0 14\nimgs/0 sample_1.png 1 0 1.0 14\nimgs/0 sample_9.png 9 0 1.0 14\n"
    (tmp_path / "metadata" / "0.npy").write_text(text)
    table = io.BytesIO()
    np.save(table, np.array([["imgs/7", "sample_0.png", "0", "1", "1.0"]]))
    (tmp_path / "metadata" / "7.npy").write_bytes(table.getvalue())
    return tmp_path, pictures


def test_the_public_layout(public):
    folder, pictures = public
    found = read_public_pathfinder_files(folder)
    assert np.array_equal(found.tokens.reshape(3, 32, 32)[:2], pictures[:2])
    assert found.labels.tolist() == [1, 0, 1]


def test_errors_in_the_public_layout_are_one_line(public):
    folder, _ = public
    picture = folder / "imgs" / "0" / "sample_1.png"
    whole = picture.read_bytes()
    picture.write_bytes(whole[:-20])
    with pytest.raises(InputError, match=r"sample_1.png is cut short or damaged"):
        read_public_pathfinder_files(folder)
    picture.write_bytes(encode_png(np.zeros((8, 9), np.uint8)))
    with pytest.raises(InputError, match=r"sample_1.png has 9 by 8 pixels, not 32 by 32"):
        read_public_pathfinder_files(folder)
    picture.write_bytes(whole)
    (folder / "metadata" / "0.npy").write_text("imgs/0 sample_0.png 0 1\n")
    with pytest.raises(InputError, match=r"sample_1.png: .*metadata has no label for it"):
        read_public_pathfinder_files(folder)
    (folder / "metadata" / "0.npy").write_text("imgs/0 sample_0.png 0 2\n")
    with pytest.raises(InputError, match=r"0.npy, row 1: the fourth column is not a label"):
        read_public_pathfinder_files(folder)
    table = (folder / "metadata" / "7.npy").read_bytes()
    for damaged in (b"\x93NUMPY\x01", table.replace(b"}", b"{")):
        (folder / "metadata" / "0.npy").write_bytes(damaged)
        with pytest.raises(InputError, match=r"0.npy is not a table of the images"):
            read_public_pathfinder_files(folder)


def test_two_copies_of_a_picture_or_labels_that_differ_are_refused(public):
    folder, _ = public
    metadata = folder / "metadata" / "0.npy"
    metadata.write_text(metadata.read_text() + "imgs/0 sample_1.png 0 1\n")
    with pytest.raises(InputError, match=r"0.npy, row \d: 0/sample_1.png has the label 1 here and another one before"):
        read_public_pathfinder_files(folder)
    metadata.write_text("imgs/0 sample_0.png 0 1\nimgs/0 sample_1.png 0 0\nimgs/0 sample_1.png 0 0\n")
    assert len(read_public_pathfinder_files(folder)) == 3
    copy = folder / "imgs" / "old" / "0" / "sample_1.png"
    copy.parent.mkdir(parents=True)
    copy.write_bytes((folder / "imgs" / "0" / "sample_1.png").read_bytes())
    with pytest.raises(InputError, match=r"0/sample_1.png exists twice: keep one copy of the images"):
        read_public_pathfinder_files(folder)


def test_a_sheet_frames_the_connected(public):
    _, pictures = public
    whole = pathfinder_files_sheet(pictures.reshape(3, -1), np.array([1, 0, 1]), scale=2, columns=2)
    assert whole.shape == (140, 140)
    assert (whole[0, 0], whole[0, 80], whole[80, 0]) == (255, 70, 255)
    assert np.array_equal(whole[3:67:2, 3:67:2], pictures[0])


@pytest.mark.timeout(20)
def test_a_folder_that_claims_more_shards_than_memory_holds_is_one_line(tmp_path):
    about = {"rules": "pathfinder32 1", "count": 10**12, "seed": 0, "shard": 1}
    (tmp_path / ABOUT).write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"shard-00000.safetensors is missing or damaged"):
        read_pathfinder_files(tmp_path)
