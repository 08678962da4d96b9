"""The kernels are compiled once, even by concurrent processes; after a failure, PyTorch is used and a reason given."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from linnet.errors import UnsupportedError
from linnet.ops import linear_attention
from linnet.ops.backend import no_cpu_backend
from linnet.ops.cpu import build

needs_compiler = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")
LIBRARY = build.built_cpu_kernels().path
PROGRAM = (
    "from linnet.ops.cpu.build import built_cpu_kernels as b; k = b(); print(k.path); assert k.library is not None, k"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate cache, and a fresh loader."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build.built_cpu_kernels.cache_clear()
    yield tmp_path / "cache" / "linnet" / "kernels"
    build.built_cpu_kernels.cache_clear()


def missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))


def failing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = folder / "c++"
    compiler.write_text("#!/bin/sh\necho 'k.cpp:1: error: out of ideas' >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def useless(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = folder / "c++"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho no library > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def endless(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = folder / "c++"
    compiler.write_text(f"#!/bin/sh\nsleep 1000 & echo $! >> {folder}/left\nwait\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(build, "SECONDS", 0.5)


def blocked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "cache").write_text("a file where the folder should be")


@pytest.mark.parametrize(
    "harm,reason",
    [
        (missing, "no C++ compiler was found"),
        (failing, "out of ideas"),
        (useless, "do not work here"),
        (endless, "it took more than"),
        (blocked, "cannot be written"),
    ],
)
def test_without_kernels_the_torch_path_is_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[..., None], reason: str
) -> None:
    harm(tmp_path, monkeypatch)
    x = torch.randn(1, 2, 9, 8)
    assert torch.equal(linear_attention(x, x, x), linear_attention(x, x, x, backend="torch"))
    with pytest.raises(UnsupportedError, match="cannot run this linear_attention") as error:
        linear_attention(x, x, x, backend="cpu")
    assert reason in str(error.value) and "\n" not in str(error.value)
    assert not list(cache.glob("*.so"))
    if harm is endless:  # tried once: other flags would not be faster
        (process,) = (tmp_path / "left").read_text().split()
        assert ended(int(process))


def ended(process: int) -> bool:
    """Whether a process ends within seconds: a killed process exists until it is reaped."""
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("trouble", [PermissionError(13, "Permission denied"), RuntimeError("no home directory")])
def test_a_cache_that_cannot_be_looked_into_holds_nothing(monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> None:
    def folder() -> Path:
        raise trouble

    monkeypatch.setattr(build, "cpu_build_folder", folder)
    assert build.find_cpu_build() is None
    assert str(trouble.args[-1]) in build.load_cpu_build().reason


def test_a_compiler_gives_kernels() -> None:
    """With a compiler, tests of the kernels must not be skipped, or an error in the source would go unnoticed."""
    if any(map(shutil.which, build.COMPILERS)):
        assert no_cpu_backend() == ""


@needs_compiler
def test_two_processes_build_at_once_and_damage_is_repaired(cache: Path) -> None:
    started = [subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=250)[0].strip() for process in started}
    (library,) = cache.glob("*.so")
    assert paths == {str(library)} and {path.name for path in cache.iterdir()} == {library.name, "lock"}
    whole = library.read_bytes()
    assert build.find_cpu_build() == library
    for damaged in (b"", whole[: len(whole) // 2], whole[:-1] + b"\0\0"):
        library.write_bytes(damaged)
        assert build.find_cpu_build() is None
    assert build.load_cpu_build().library is not None
    assert build.find_cpu_build() is not None


@pytest.fixture
def planted(cache: Path) -> Path:
    """The kernels of this machine in the test's own cache; returns the library."""
    cache.mkdir(parents=True, mode=0o700)
    for path in (cache.parent, cache.parent.parent):
        path.chmod(0o700)
    assert LIBRARY is not None
    shutil.copy(LIBRARY, cache)
    (cache / LIBRARY.name).chmod(0o700)
    return cache / LIBRARY.name


@needs_compiler
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
@pytest.mark.parametrize("up", [0, 1, 2, 3])
def test_nothing_is_loaded_or_built_where_others_can_write(planted: Path, mode: int, up: int) -> None:
    place = planted.parents[up]
    sticky = mode & 0o1000 and up
    before = place.stat().st_mode & 0o7777
    place.chmod(mode)
    try:
        assert (build.find_cpu_build() is None) == (not sticky)
        found = build.load_cpu_build()
        assert (found.library is None) == (not sticky)
        if not sticky:
            assert f"{place} can be written by others: no code is loaded from {planted.parent}" in found.reason
            assert build.refused_cpu_build() == found.reason
            with pytest.raises(build.BuildError, match="can be written by others"):
                build.build_cpu_kernels()
    finally:
        place.chmod(before)


def test_nothing_is_made_in_a_folder_of_everybody(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert "can be written by others" in build.load_cpu_build().reason
    assert not list((tmp_path / "cache").iterdir())


@needs_compiler
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("up", [0, 1])
def test_nothing_is_loaded_from_a_folder_of_another_user(planted: Path, up: int) -> None:
    os.chown(planted.parents[up], 65534, 65534)
    assert build.find_cpu_build() is None
    assert f"{planted.parents[up]} belongs to another user" in build.load_cpu_build().reason


@needs_compiler
def test_a_library_of_another_kind_is_not_loaded(planted: Path, tmp_path: Path) -> None:
    whole = planted.read_bytes()
    planted.chmod(0o770)
    assert build.find_cpu_build() is None
    planted.unlink()
    (tmp_path / planted.name).write_bytes(whole)
    (tmp_path / planted.name).chmod(0o700)
    planted.symlink_to(tmp_path / planted.name)
    assert build.find_cpu_build() is None
    planted.unlink()
    os.mkfifo(planted)
    assert build.find_cpu_build() is None
    planted.unlink()
    planted.write_bytes(whole)
    planted.chmod(0o700)
    assert build.find_cpu_build() == planted


@needs_compiler
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system has no names for descriptors")
def test_the_file_that_was_verified_is_the_one_that_is_loaded(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is swapped between the check and the load, as an attacker would do."""
    before = build._verified

    def swapped(path: Path) -> int:
        descriptor = before(path)
        path.unlink()
        path.write_bytes(b"not a library")
        return descriptor

    monkeypatch.setattr(build, "_verified", swapped)
    assert build._load(planted).linnet_check() == 0


def test_a_link_in_the_place_of_the_lock_is_not_followed(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    cache.mkdir(parents=True)
    (cache / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(build.BuildError):
        build.build_cpu_kernels()
    assert (tmp_path / "precious").read_text() == "content"


def test_the_cache_is_private_whatever_the_umask(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing(tmp_path, monkeypatch)
    before = os.umask(0)
    try:
        assert "no C++ compiler" in build.load_cpu_build().reason
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (cache, cache.parent, cache.parent.parent)] == [0o700] * 3


def test_files_of_a_killed_build_are_removed(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing(tmp_path, monkeypatch)
    cache.mkdir(parents=True, mode=0o700)
    for name in ("kernels-999999999-0123abcd", f"kernels-{os.getppid()}-0123abcd"):
        (cache / f".linnet-{name}.tmp").mkdir()
    build.load_cpu_build()
    assert {path.name for path in cache.iterdir()} == {"lock", f".linnet-kernels-{os.getppid()}-0123abcd.tmp"}


def test_the_key_follows_source_and_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = build.cpu_build_key()
    monkeypatch.setattr(build, "_processor", lambda: "another")
    assert build.cpu_build_key() != before
    monkeypatch.undo()
    (tmp_path / "kernels.cpp").write_text("int x;")
    monkeypatch.setattr(build, "SOURCE", tmp_path)
    assert build.cpu_build_key() != before
