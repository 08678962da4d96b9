"""The kernels are compiled once, by whoever comes first; whatever goes wrong leaves the PyTorch path and a reason."""

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
from linnet.ops.backend import no_kernels
from linnet.ops.cpu import build

needs_compiler = pytest.mark.skipif(bool(no_kernels()), reason=f"no kernels: {no_kernels()}")
PROGRAM = "from linnet.ops.cpu.build import kernels; k = kernels(); print(k.path); assert k.library is not None, k"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and no memory of what was loaded before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build.kernels.cache_clear()
    yield tmp_path / "cache" / "linnet" / "kernels"
    build.kernels.cache_clear()


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
def test_without_kernels_the_torch_path_serves(
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
    """Whether a process is gone, or will be within seconds: what was killed is there until it is reaped."""
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

    monkeypatch.setattr(build, "folder", folder)
    assert build.built() is None
    assert str(trouble.args[-1]) in build.load().reason


def test_a_compiler_gives_kernels() -> None:
    """Where one is, tests of the kernels do not skip: a mistake in the source would look like a missing compiler."""
    if any(map(shutil.which, build.COMPILERS)):
        assert no_kernels() == ""


@needs_compiler
def test_two_processes_build_at_once_and_damage_is_mended(cache: Path) -> None:
    started = [subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=250)[0].strip() for process in started}
    (library,) = cache.glob("*.so")
    assert paths == {str(library)} and {path.name for path in cache.iterdir()} == {library.name, "lock"}
    whole = library.read_bytes()
    assert build.built() == library
    for damaged in (b"", whole[: len(whole) // 2], whole[:-1] + b"\0\0"):
        library.write_bytes(damaged)
        assert build.built() is None
    assert build.load().library is not None
    assert build.built() is not None


def test_the_key_follows_source_and_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = build.key()
    monkeypatch.setattr(build, "_processor", lambda: "another")
    assert build.key() != before
    monkeypatch.undo()
    (tmp_path / "kernels.cpp").write_text("int x;")
    monkeypatch.setattr(build, "SOURCE", tmp_path)
    assert build.key() != before
