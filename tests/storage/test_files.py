"""Files are written atomically, even when system calls fail; only our own temporary files are removed."""

import os
import signal
import time
from pathlib import Path

import pytest

from linnet.errors import InputError, LinnetError
from linnet.storage.checkpoint import read_checkpoint
from linnet.storage.files import (
    IDLE,
    clean_temporary_files,
    file_beside,
    read_hashed_file,
    read_json_file,
    read_text_file,
    temporary_file_name,
    write_file_atomic,
    write_json_file,
    write_text_file,
)
from tests.storage.faults import calls_of, fail_at, in_child, no_space, one_line, save, temporaries, value


def test_only_our_leftovers_are_cleaned(tmp_path):
    names = ("a.tmp", ".b.tmp", "linnet-c.tmp", "step-3", ".linnet-notes", ".lock")
    theirs = [tmp_path / name for name in names]
    for path in theirs:
        path.write_text("x")
    (tmp_path / ".linnet-step-5-1-ab.tmp").mkdir()
    (tmp_path / ".linnet-step-5-1-ab.tmp" / "model.safetensors").write_text("x")
    (tmp_path / ".linnet-config.toml-1-ab.tmp").write_text("x")
    clean_temporary_files(tmp_path, older_than=60)
    assert len(temporaries(tmp_path)) == 3
    clean_temporary_files(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(theirs)
    clean_temporary_files(tmp_path / "absent")


def test_in_a_shared_folder_files_of_a_living_process_stay(tmp_path):
    dead = in_child(lambda: None)
    os.waitpid(dead, 0)
    living = in_child(lambda: time.sleep(60))
    hour_ago = time.time() - 3600
    names = {
        "dead": f".linnet-model-{dead}-0123abcd.tmp",
        "new": f".linnet-model-{dead}-0123abce.tmp",
        "busy": f".linnet-model-{dead}-0123abcf.tmp",
        "living": f".linnet-model-{living}-0123abcd.tmp",
        "foreign": ".linnet-notes.tmp",
        "old": ".linnet-step-3.old",
    }
    for name in names.values():
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("x")
        for path in (tmp_path / name / "model.safetensors", tmp_path / name):
            os.utime(path, (hour_ago, hour_ago))
    os.utime(tmp_path / names["new"])
    os.utime(tmp_path / names["busy"] / "model.safetensors")
    try:
        assert clean_temporary_files(tmp_path, IDLE, shared=True) == ""
    finally:
        os.kill(living, signal.SIGKILL)
        os.waitpid(living, 0)
    assert {path.name for path in tmp_path.iterdir()} == {*names.values()} - {names["dead"]}


def test_a_removal_that_fails_is_named(tmp_path, monkeypatch):
    (tmp_path / ".linnet-step-5-1-ab.tmp").mkdir()

    def full(path):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("shutil.rmtree", full)
    assert clean_temporary_files(tmp_path) == f"cannot remove {tmp_path}/.linnet-step-5-1-ab.tmp: Too many open files"


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        with pytest.raises(LinnetError) as error:
            read_json_file(tmp_path / name)
        assert one_line(error) == f"cannot read {tmp_path / name}: it is not a regular file"
        with pytest.raises(InputError) as error:
            read_text_file(tmp_path / name)
        assert one_line(error) == f"cannot read {tmp_path / name}: it is not a regular file"


def test_short_writes_are_continued(tmp_path, monkeypatch):
    original = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: original(descriptor, data[:100]))
    assert value(read_checkpoint(save(tmp_path, 3))) == 3.0


@pytest.mark.parametrize("old", [b"old", None])
def test_write_atomic_gives_the_old_or_the_new_file(tmp_path, old):
    path = tmp_path / "config.toml"
    for call in range(calls_of(lambda: write_file_atomic(tmp_path / "count", b"new"))):
        path.unlink(missing_ok=True)
        if old is not None:
            path.write_bytes(old)
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, call, no_space)
            with pytest.raises(LinnetError) as error:
                write_file_atomic(path, b"new")
        assert one_line(error) == f"cannot write {path}: No space left on device"
        assert (path.read_bytes() if path.exists() else None) in (old, b"new")
        assert temporaries(tmp_path) == []
    write_text_file(path, "größer\n")
    assert path.read_text(encoding="utf-8") == "größer\n"


def test_a_temporary_name_is_beside_its_path_in_any_spelling(tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    for path, parent in ((Path("."), tmp_path), (Path("new"), inside), (Path("../new"), tmp_path)):
        found = temporary_file_name(path)
        assert found.parent.resolve() == parent
        assert found.match(".linnet-*.tmp")
    write_text_file("new", "text")
    assert [path.name for path in inside.iterdir()] == ["new"]


def test_text_and_json_files(tmp_path):
    path = tmp_path / "environment.json"
    write_json_file(path, {"b": 1, "a": [0.1, "ü", None]})
    assert read_json_file(path) == {"a": [0.1, "ü", None], "b": 1}
    with pytest.raises(LinnetError, match=r"environment.json.a is nan"):
        write_json_file(path, {"a": float("nan")})
    assert read_json_file(path)["b"] == 1
    path.write_text("{")
    with pytest.raises(LinnetError, match="is not valid JSON"):
        read_json_file(path)
    with pytest.raises(LinnetError, match=r"cannot read .*absent: No such file or directory"):
        read_json_file(tmp_path / "absent")
    with pytest.raises(LinnetError, match=r"cannot write .*file: No such file or directory"):
        write_text_file(tmp_path / "absent" / "file", "x")


def test_no_permission(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    source, sink = os.pipe()

    def forbidden():
        if os.geteuid() == 0:
            os.setuid(65534)  # the superuser may write anywhere
        for action in (lambda: write_text_file(folder / "file", "x"), lambda: save(folder, 1)):
            try:
                action()
            except LinnetError as error:
                os.write(sink, f"{error}\n".encode())

    os.waitpid(in_child(forbidden), 0)
    os.close(sink)
    with os.fdopen(source) as lines:
        assert [line.strip() for line in lines] == [
            f"cannot write {folder}/{name}: Permission denied" for name in ("file", "step-1")
        ]


def test_a_file_beside_a_folder_keeps_the_full_name(tmp_path, monkeypatch):
    assert file_beside(Path("runs/study"), ".md") == Path("runs/study.md")
    assert file_beside(Path("runs/study-0.1"), ".md") == Path("runs/study-0.1.md")  # not that of study-0
    (tmp_path / "here" / "deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "deeper")
    assert file_beside(Path(), ".md") == tmp_path / "here" / "deeper.md"
    assert file_beside(Path(".."), ".md") == tmp_path / "here.md"


def test_what_a_dead_process_of_this_machine_left_goes_at_once(tmp_path):
    def write():
        temporary_file_name(tmp_path / "page.html").write_text("x")

    pid = in_child(write)
    os.waitpid(pid, 0)
    (left,) = tmp_path.iterdir()
    foreign = tmp_path / left.name.replace(left.name[-20:-12], "00000000")  # of another machine
    foreign.write_text("x")
    assert clean_temporary_files(tmp_path, IDLE, shared=True) == ""
    assert list(tmp_path.iterdir()) == [foreign]
    hour_ago = time.time() - 3600
    os.utime(foreign, (hour_ago, hour_ago))
    clean_temporary_files(tmp_path, shared=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_larger_than_memory_is_one_line(tmp_path):
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 1 << 42)
    with pytest.raises(OSError, match="it has 4,398,046,511,104 bytes, and there is no memory for them"):
        read_hashed_file(tmp_path / "hole")
