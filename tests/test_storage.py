"""Checkpoints and run folders: nothing torn is ever visible, nothing damaged is ever believed."""

import errno
import itertools
import json
import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from linnet.errors import LinnetError
from linnet.storage import (
    FILES,
    MANIFEST,
    CheckpointError,
    MetricsLog,
    RunLock,
    clean,
    newest_checkpoint,
    pack_tensors,
    prune,
    read_checkpoint,
    read_json,
    read_metrics,
    save_checkpoint,
    steps,
    temporary_name,
    to_keep,
    unpack_tensors,
    write_atomic,
    write_json,
    write_text,
)

# Every call by which a writer can change the disk; `open` and `rename` of pathlib end in these too.
SYSTEM_CALLS = ("open", "write", "fsync", "close", "mkdir", "rename", "replace")


def save(folder, step, value=None):
    value = float(step) if value is None else value
    weight = torch.full((5, 3), value)
    model = {"embed": weight, "head": weight, "half": torch.arange(4, dtype=torch.bfloat16)}
    optimizer = {"embed.exp_avg": weight * 2, "step": torch.tensor(step), "empty": torch.zeros(0)}
    return save_checkpoint(folder, step, model, optimizer, {"step": step, "lr": 0.1, "seen": [1, None, "x"]})


def value(checkpoint):
    """The number that `save` put in, from a checkpoint whose parts agree with each other."""
    assert torch.equal(checkpoint.optimizer["embed.exp_avg"], checkpoint.model["embed"] * 2)
    assert checkpoint.state["step"] == checkpoint.step == int(checkpoint.optimizer["step"])
    return checkpoint.model["embed"][0, 0].item()


def no_warning(message):
    raise AssertionError(message)


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def temporaries(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".linnet-")]


def in_child(function):
    """Run `function` in a forked child, for a minute at most; returns its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            function()
        finally:
            os._exit(0)
    return pid


def fail_at(monkeypatch, call, failure):
    """Replace the system calls so that the `call`-th one (from 0) does `failure()`; returns the counter."""
    count = itertools.count()

    def wrap(original):
        def wrapped(*args, **kwargs):
            if next(count) == call:
                failure()
            return original(*args, **kwargs)

        return wrapped

    for name in SYSTEM_CALLS:
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))
    return count


def calls_of(action):
    """How many system calls `action` makes."""
    with pytest.MonkeyPatch.context() as patch:
        count = fail_at(patch, -1, lambda: None)
        action()
    return next(count)


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
    data, tied = pack_tensors({"head.weight": weight, "embed.weight": weight, "other": weight.clone()})
    assert tied == {"head.weight": "embed.weight"}
    assert 2 * weight.nbytes < len(data) < 2 * weight.nbytes + 1000
    tensors = unpack_tensors(data, tied)
    assert tensors["head.weight"] is tensors["embed.weight"]
    assert tensors["other"] is not tensors["embed.weight"]
    read = read_checkpoint(save(tmp_path, 1))
    assert read.model["head"].data_ptr() == read.model["embed"].data_ptr()


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"PK\3\4" * 10, b"\xff" * 100, b'\2\0\0\0\0\0\0\0{}more'])
def test_bytes_that_are_no_tensors_are_one_line(data):
    with pytest.raises(LinnetError) as error:
        unpack_tensors(data, {})
    assert str(error.value).startswith("these are not tensors that linnet wrote: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("tied", [None, [], ["a"], "b", 3, {"b": "c"}, {"b": None}, {"b": ["a"]}, {"b": 1}])
def test_malformed_ties_are_one_line(tied):
    data, _ = pack_tensors({"a": torch.ones(2)})
    with pytest.raises(LinnetError) as error:
        unpack_tensors(data, tied)
    assert "\n" not in str(error.value)


def test_views_are_stored_by_value():
    base = torch.arange(12.0).reshape(3, 4)
    views = {"row": base[1], "transposed": base.T, "flat": base.view(-1), "whole": base, "none": base[:0]}
    tensors = unpack_tensors(*pack_tensors(views))
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
            patch.setattr("linnet.storage.unpack_tensors", no_warning)  # found before any tensor is parsed
            with pytest.raises(CheckpointError) as error:
                read_checkpoint(folder / "step-2")
        assert named in one_line(error)
        warnings = []
        assert newest_checkpoint(folder, warnings.append).step == 1
        assert len(warnings) == 1
        assert named in warnings[0]

    return fresh, check


def places(rng, count):
    """Random (file, byte) places in a checkpoint, each file among them equally often."""
    return ((name, rng.random()) for name in itertools.islice(itertools.cycle([*FILES, MANIFEST]), count))


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


def test_the_newest_is_chosen_by_number_and_none_by_default(tmp_path):
    assert newest_checkpoint(tmp_path / "absent", no_warning) is None
    assert newest_checkpoint(tmp_path, no_warning) is None
    for step in (10, 9, 100):
        save(tmp_path, step)
    for name in ("step-0200", "step-x", "step-300.bak", ".linnet-step-400.tmp"):
        shutil.copytree(tmp_path / "step-9", tmp_path / name)
    assert newest_checkpoint(tmp_path, no_warning).step == 100
    assert steps(tmp_path) == [9, 10, 100]


def test_the_last_two_and_the_best_are_kept(tmp_path):
    for step in (5, 10, 15, 20, 25):
        save(tmp_path, step)
    assert to_keep(tmp_path, 25, None) == {20, 25}
    prune(tmp_path, to_keep(tmp_path, 25, best=10))
    assert steps(tmp_path) == [10, 20, 25]
    save(tmp_path, 22)  # resumed from 20 since 25 was damaged
    prune(tmp_path, to_keep(tmp_path, 22, best=10))
    assert steps(tmp_path) == [10, 20, 22]
    assert temporaries(tmp_path) == []


def test_only_our_leftovers_are_cleaned(tmp_path):
    names = ("a.tmp", ".b.tmp", "linnet-c.tmp", "step-3", ".linnet-notes", ".lock")
    theirs = [tmp_path / name for name in names]
    for path in theirs:
        path.write_text("x")
    (tmp_path / ".linnet-step-5-1-ab.tmp").mkdir()
    (tmp_path / ".linnet-step-5-1-ab.tmp" / "model.safetensors").write_text("x")
    (tmp_path / ".linnet-config.toml-1-ab.tmp").write_text("x")
    clean(tmp_path, older_than=60)
    assert len(temporaries(tmp_path)) == 3
    clean(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(theirs)
    clean(tmp_path / "absent")


def test_a_checkpoint_set_aside_comes_back(tmp_path):
    (save(tmp_path, 4, value=1.0)).rename(tmp_path / ".linnet-step-4.old")  # killed between the two renames
    clean(tmp_path)
    assert value(newest_checkpoint(tmp_path, no_warning)) == 1.0
    save(tmp_path, 5).rename(tmp_path / ".linnet-step-4.old")  # killed after them
    clean(tmp_path)
    assert value(newest_checkpoint(tmp_path, no_warning)) == 1.0
    assert temporaries(tmp_path) == []


def no_space():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt():
    raise KeyboardInterrupt


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("failure", [no_space, interrupt])
@pytest.mark.parametrize("replaces", [False, True])
def test_no_failing_system_call_leaves_a_torn_checkpoint(tmp_path, failure, replaces):
    step = 1 if replaces else 2
    save(tmp_path / "count", 1)
    outcomes = []
    for call in range(calls_of(lambda: save(tmp_path / "count", step, value=7.0))):
        folder = tmp_path / str(call)
        save(folder, 1)
        failed = None
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, call, failure)
            try:
                save(folder, step, value=7.0)
            except (LinnetError, KeyboardInterrupt) as error:
                failed = error
        found = value(newest_checkpoint(folder, no_warning))
        assert found in ((1.0, 7.0) if failed else (7.0,))
        assert 1 in steps(folder)
        if isinstance(failed, LinnetError):
            assert str(failed) == f"cannot write {folder}/step-{step}: No space left on device"
            assert temporaries(folder) == []
        outcomes.append((found, failed is None))
        clean(folder)
        assert temporaries(folder) == []
        assert value(newest_checkpoint(folder, no_warning)) == found
    assert len(outcomes) > 20
    assert outcomes[0] == (1.0, False)  # the first call failed, so nothing had changed
    assert outcomes[-1] == (7.0, False)  # the last call syncs the folder: all is there, if not for ever


@pytest.mark.parametrize("replaces", [False, True])
def test_no_kill_at_any_system_call_leaves_a_torn_checkpoint(tmp_path, replaces):
    step = 1 if replaces else 2
    save(tmp_path / "count", 1)
    seen = set()
    for call in range(calls_of(lambda: save(tmp_path / "count", step, value=7.0))):
        folder = tmp_path / str(call)
        save(folder, 1)

        def doomed(call=call, folder=folder):
            with pytest.MonkeyPatch.context() as patch:
                fail_at(patch, call, kill)
                save(folder, step, value=7.0)

        assert os.WTERMSIG(os.waitpid(in_child(doomed), 0)[1]) == signal.SIGKILL
        clean(folder)
        assert temporaries(folder) == []
        seen.add(value(newest_checkpoint(folder, no_warning)))
    assert seen == {1.0, 7.0}


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """What no kill can test, a power cut would: the order of syncs and renames."""
    events = []
    sync, rename = os.fsync, os.rename

    def recorded_sync(descriptor):
        events.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    def recorded_rename(source, target):
        events.append(("rename", Path(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(os, "rename", recorded_rename)
    final = save(tmp_path, 1)
    *first, folder, named, parent = events
    assert [kind for kind, _ in first] == ["sync"] * 4
    assert [path.name for _, path in first] == [*FILES, MANIFEST]
    assert folder == ("sync", first[0][1].parent)
    assert named == ("rename", final)
    assert parent == ("sync", tmp_path)


def test_kills_at_random_moments_of_a_run(tmp_path):
    def run(folder):
        clean(folder)
        newest = newest_checkpoint(folder, no_warning)
        for step in range(newest.step + 1 if newest else 1, 10_000):
            save(folder, step)
            prune(folder, to_keep(folder, step, best=1))

    start = time.perf_counter()
    save(tmp_path / "timed", 1)
    longest = min(0.01 + 6 * (time.perf_counter() - start), 0.2)  # a few saves, on a fast disk or a slow one
    rng, last = random.Random(0), 0
    for _ in range(40):
        pid = in_child(lambda: run(tmp_path))
        time.sleep(rng.uniform(0.0, longest))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        newest = newest_checkpoint(tmp_path, no_warning)
        step = newest.step if newest else 0
        assert step >= last
        assert step == 0 or value(newest) == step
        last = step
    assert last > 5
    clean(tmp_path)
    assert temporaries(tmp_path) == []


def test_a_writer_that_the_system_stops_says_so_in_one_line(tmp_path):
    """A real failure in the middle of a file: the system allows this process no file over 2,000 bytes."""
    save(tmp_path, 1)
    result = tmp_path / "result"
    result.touch()

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            save_checkpoint(tmp_path, 2, {"w": torch.zeros(10_000)}, {}, {})
        except LinnetError as error:
            result.write_text(str(error))

    os.waitpid(in_child(limited), 0)
    assert result.read_text() == f"cannot write {tmp_path}/step-2: File too large"
    assert temporaries(tmp_path) == []
    assert newest_checkpoint(tmp_path, no_warning).step == 1


def test_short_writes_are_continued(tmp_path, monkeypatch):
    original = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: original(descriptor, data[:100]))
    assert value(read_checkpoint(save(tmp_path, 3))) == 3.0


@pytest.mark.parametrize("old", [b"old", None])
def test_write_atomic_gives_the_old_or_the_new_file(tmp_path, old):
    path = tmp_path / "config.toml"
    for call in range(calls_of(lambda: write_atomic(tmp_path / "count", b"new"))):
        path.unlink(missing_ok=True)
        if old is not None:
            path.write_bytes(old)
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, call, no_space)
            with pytest.raises(LinnetError) as error:
                write_atomic(path, b"new")
        assert one_line(error) == f"cannot write {path}: No space left on device"
        assert (path.read_bytes() if path.exists() else None) in (old, b"new")
        assert temporaries(tmp_path) == []
    write_text(path, "größer\n")
    assert path.read_text(encoding="utf-8") == "größer\n"


def test_a_temporary_name_lies_beside_its_path_however_that_is_written(tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    for path, beside in ((Path("."), tmp_path), (Path("new"), inside), (Path("../new"), tmp_path)):
        found = temporary_name(path)
        assert found.parent.resolve() == beside
        assert found.match(".linnet-*.tmp")
    write_text("new", "text")
    assert [path.name for path in inside.iterdir()] == ["new"]


def test_text_and_json_files(tmp_path):
    path = tmp_path / "environment.json"
    write_json(path, {"b": 1, "a": [0.1, "ü", None]})
    assert read_json(path) == {"a": [0.1, "ü", None], "b": 1}
    with pytest.raises(LinnetError, match=r"environment.json.a is nan"):
        write_json(path, {"a": float("nan")})
    assert read_json(path)["b"] == 1
    path.write_text("{")
    with pytest.raises(LinnetError, match="is not valid JSON"):
        read_json(path)
    with pytest.raises(LinnetError, match=r"cannot read .*absent: No such file or directory"):
        read_json(tmp_path / "absent")
    with pytest.raises(LinnetError, match=r"cannot write .*file: No such file or directory"):
        write_text(tmp_path / "absent" / "file", "x")


def test_no_permission(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    source, sink = os.pipe()

    def forbidden():
        if os.geteuid() == 0:
            os.setuid(65534)  # the superuser may write anywhere
        for action in (lambda: write_text(folder / "file", "x"), lambda: save(folder, 1)):
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
    assert [record["step"] for record in read_metrics(path)][:4] == [1, 2, 3, 3]


def test_the_log_holds_valid_json_only(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    log = MetricsLog(path)
    log.append({"step": 1, "loss": float("nan"), "norm": float("inf"), "lr": 0.5})
    log.close()
    record = json.loads(path.read_text(), parse_constant=no_warning)
    assert record == {"step": 1, "loss": None, "norm": None, "lr": 0.5}
    path.write_bytes(path.read_bytes() + b'nonsense\n[1]\n{"step": 2}\n{"step": 3')
    assert [record["step"] for record in read_metrics(path)] == [1, 2]


def test_a_full_disk_under_the_log_is_one_line():
    log = MetricsLog.__new__(MetricsLog)  # a log begins with a rename, which /dev/full does not allow
    log.path, log._descriptor = Path("/dev/full"), os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(LinnetError) as error:
        log.append({"step": 1})
    assert one_line(error) == "cannot write /dev/full: No space left on device"
    log.close()
