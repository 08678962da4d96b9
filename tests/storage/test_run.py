"""A run folder: one process at a time, and a log that is the same after an interruption."""

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

from linnet.errors import LinnetError
from linnet.storage.run import MetricsLog, RunLock, check_run_metrics, read_run_metrics
from tests.storage.faults import in_child, no_warning, one_line


def test_a_second_process_is_refused_until_the_owner_is_killed(tmp_path):
    for _ in range(5):
        ready, told = os.pipe()

        def owner(told=told):
            with RunLock(tmp_path):
                os.write(told, b"x")
                time.sleep(60)

        pid = in_child(owner)
        os.read(ready, 1)
        os.close(ready)
        os.close(told)
        for _ in range(2):
            with pytest.raises(LinnetError) as error, RunLock(tmp_path):
                pass
            host = os.uname().nodename
            assert one_line(error) == f"cannot lock {tmp_path}: process {pid} on {host} is using it"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with RunLock(tmp_path):
            assert str(os.getpid()) in (tmp_path / ".lock").read_text()


def test_the_lock_is_not_kept_by_a_forked_child(tmp_path):
    alive, told = os.pipe()

    def child():
        os.write(told, b"x")
        time.sleep(60)

    with RunLock(tmp_path):
        pid = in_child(child)
        os.read(alive, 1)
        with pytest.raises(LinnetError), RunLock(tmp_path):
            pass
    try:
        with RunLock(tmp_path):  # free although the child still lives
            pass
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(alive)
        os.close(told)


def test_a_child_that_leaves_the_block_does_not_free_the_lock(tmp_path):
    with RunLock(tmp_path) as lock:
        os.waitpid(in_child(lambda: lock.__exit__(None, None, None)), 0)
        with pytest.raises(LinnetError), RunLock(tmp_path):
            pass


def test_the_lock_of_a_missing_folder(tmp_path):
    with pytest.raises(LinnetError, match=r"cannot lock .*absent: No such"), RunLock(tmp_path / "absent"):
        pass


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path, exists):
    target = tmp_path / "precious"
    if exists:
        target.write_text("content")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").symlink_to(target)
    with pytest.raises(LinnetError) as error, RunLock(tmp_path / "run"):
        pass
    assert one_line(error) == f"cannot lock {tmp_path}/run: {tmp_path}/run/.lock is a symbolic link"
    assert target.exists() == exists
    assert not exists or target.read_text() == "content"


def test_a_file_that_is_not_a_lock_is_not_overwritten(tmp_path):
    (tmp_path / "precious").write_text("content")
    (tmp_path / ".lock").hardlink_to(tmp_path / "precious")
    with pytest.raises(LinnetError, match=r"\.lock is not a lock of linnet$"), RunLock(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "content"
    (tmp_path / ".lock").unlink()
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(LinnetError, match=r"it is not a regular file$"), RunLock(tmp_path):
        pass


def test_the_log_of_an_interrupted_run_is_that_of_an_uninterrupted_one(tmp_path):
    def run(path, start, stop):
        log = MetricsLog(path, resume_at=start or None)
        for step in range(start + 1, stop + 1):
            log.append({"step": step, "loss": 1 / step})
            if step % 3 == 0:
                log.append({"step": step, "valid": "ü"})
        log.sync()
        log.close()

    run(tmp_path / "straight", 0, 12)
    whole = (tmp_path / "straight").read_bytes()
    for torn in range(0, len(whole), 7):  # killed at any byte after the checkpoint of step 3
        path = tmp_path / "interrupted"
        path.write_bytes(whole[:torn])
        if sum(b'"valid"' in line for line in whole[:torn].split(b"\n")[:-1]) >= 1:
            run(path, 3, 12)
            assert path.read_bytes() == whole
    assert [record["step"] for record in read_run_metrics(path)][:4] == [1, 2, 3, 3]


def test_the_mark_of_a_log_is_that_of_its_bytes(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    marks = [log.mark()]
    for step in (1, 2, 3):
        log.append({"step": step})
        marks.append(log.mark())
    log.close()
    whole = path.read_bytes()
    for mark in marks:
        data = whole[: mark["size"]]
        assert mark == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        check_run_metrics(path, mark)
    log = MetricsLog(path, 1, marks[1])
    assert log.mark() == marks[1]
    log.append({"step": 2})
    assert log.mark() == marks[2]
    log.close()
    assert path.read_bytes() == whole[: marks[2]["size"]]
    with pytest.raises(LinnetError, match="is damaged"):
        MetricsLog(path, 3, marks[3])
    assert path.read_bytes() == whole[: marks[2]["size"]]
    check_run_metrics(tmp_path / "absent", None)
    check_run_metrics(tmp_path / "absent", marks[0])


def test_the_log_holds_valid_json_only(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_run_metrics(path) == []
    log = MetricsLog(path)
    log.append({"step": 1, "loss": float("nan"), "norm": float("inf"), "lr": 0.5})
    log.close()
    record = json.loads(path.read_text(), parse_constant=no_warning)
    assert record == {"step": 1, "loss": None, "norm": None, "lr": 0.5}
    path.write_bytes(path.read_bytes() + b'nonsense\n[1]\n{"step": 2}\n{"step": 3')
    assert [record["step"] for record in read_run_metrics(path)] == [1, 2]


def test_a_full_disk_under_the_log_is_one_line():
    log = MetricsLog.__new__(MetricsLog)  # a log begins with a rename, which /dev/full does not allow
    log.path, log._descriptor = Path("/dev/full"), os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(LinnetError) as error:
        log.append({"step": 1})
    assert one_line(error) == "cannot write /dev/full: No space left on device"
    log.close()
