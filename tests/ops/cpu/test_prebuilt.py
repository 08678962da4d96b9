"""Prebuilt kernels: the best level that the processor has is loaded, without a compiler, and computes the same bits."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from linnet.ops import linear_attention
from linnet.ops.backend import no_cpu_backend
from linnet.ops.cpu import build, prebuilt

pytestmark = [
    pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}"),
    pytest.mark.skipif(not prebuilt.prebuilt_levels(), reason="prebuilt kernels are for Linux on x86_64"),
]
COMPILED = build.built_cpu_kernels()
# Every mechanism that has kernels, forward and backward, and a decoding step, as digests of their bits.
PROGRAM = """
import hashlib, json, sys, torch, linnet
from pathlib import Path
from linnet.ops.cpu import build, prebuilt
prebuilt.PREBUILT = Path(sys.argv[1])
prebuilt.prebuilt_levels = lambda: sys.argv[2:]
found = {"path": str(build.kernels().path)}
for name in ("norm", "elu", "lln", "lln_diag", "diag", "softmax", "performer", "cosformer"):
    for causal in (True, False):
        torch.manual_seed(0)
        mixer = linnet.create_mixer(name, width=128, heads=2, causal=causal)
        x = torch.randn(2, 300, 128, requires_grad=True)
        y = mixer(x)
        y.square().mean().backward()
        parts = [y, x.grad, *(p.grad for p in mixer.parameters() if p.grad is not None)]
        if causal:
            with torch.no_grad():
                parts.append(mixer.step(x[:, 299:], mixer.prefill(x[:, :299])[1])[0])
        bits = hashlib.sha256(b"".join(part.detach().contiguous().numpy().tobytes() for part in parts))
        found[f"{name} {causal}"] = [bits.hexdigest(), float(y.detach().double().norm())]
print(json.dumps(found))
"""


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with this machine's kernels as its portable ones, an empty cache and no compiler."""
    place = tmp_path / "prebuilt"
    place.mkdir()
    assert COMPILED.path is not None
    shutil.copy(COMPILED.path, place / f"x86-64-{build.cpu_build_source_key()}.so")
    monkeypatch.setattr(prebuilt, "PREBUILT", place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    build.built_cpu_kernels.cache_clear()
    yield place
    build.built_cpu_kernels.cache_clear()


def test_without_a_compiler_the_kernels_of_the_wheel_run(ready: Path, tmp_path: Path) -> None:
    x = torch.randn(1, 2, 9, 8)
    assert torch.isfinite(linear_attention(x, x, x, backend="cpu")).all()
    (library,) = ready.iterdir()
    found = build.built_cpu_kernels()
    assert found.path == library == build.find_cpu_build()
    assert found.digest == hashlib.sha256(library.read_bytes()).hexdigest() == COMPILED.digest
    assert not (tmp_path / "cache").exists()  # nothing is written


def test_kernels_that_the_user_compiled_come_first(ready: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "linnet" / "kernels"
    cache.mkdir(parents=True, mode=0o700)
    for place in (tmp_path / "cache", cache.parent):
        place.chmod(0o700)
    assert COMPILED.path is not None
    shutil.copy(COMPILED.path, cache)
    (cache / COMPILED.path.name).chmod(0o700)
    assert build.load_cpu_build().path == cache / COMPILED.path.name == build.find_cpu_build()


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF"])
def test_a_library_that_does_not_load_is_as_good_as_none(ready: Path, content: bytes) -> None:
    (library,) = ready.iterdir()
    library.write_bytes(content)
    assert "no C++ compiler" in build.load_cpu_build().reason


def test_a_library_of_another_source_is_not_used(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "kernels.cpp").write_text("int x;")
    monkeypatch.setattr(build, "SOURCE", tmp_path / "source")
    assert build.find_cpu_build() is None
    assert "no C++ compiler" in build.load_cpu_build().reason


@pytest.mark.parametrize("level", prebuilt.LEVELS)
def test_the_level_follows_the_flags_of_the_processor(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(prebuilt.LEVELS)
    best_first = names[names.index(level) :]
    flags = set[str]().union(*(prebuilt.LEVELS[name] for name in best_first)) | {"fpu", "sse2"}
    monkeypatch.setattr(prebuilt, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(f"model name\t: X\nflags\t\t: {' '.join(sorted(flags))}\n")
    assert prebuilt.prebuilt_levels() == best_first
    for flag in prebuilt.LEVELS[level]:  # without any one of its flags, a level does not run
        (tmp_path / "cpuinfo").write_text(f"flags\t\t: {' '.join(sorted(flags - {flag}))}\n")
        assert prebuilt.prebuilt_levels() == best_first[1:]


def test_other_machines_have_no_levels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert prebuilt.prebuilt_levels() == []
    with pytest.raises(build.BuildError, match="for Linux on x86_64, not Linux on aarch64"):
        build.build_prebuilt(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_every_level_computes_and_the_level_of_this_machine_has_the_bits_of_its_compiler(tmp_path: Path) -> None:
    """Same vectors, same bits: a level that is as wide as -march=native gives what -march=native gives."""
    build.build_prebuilt(tmp_path / "prebuilt")

    def run(*levels: str) -> dict[str, list]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if levels:
            environment["XDG_CACHE_HOME"] = str(tmp_path / "empty")
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "prebuilt"), *levels]
        return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

    compiled = run()
    assert Path(compiled.pop("path")).parent == build.cpu_build_folder().resolve()
    for number, level in enumerate(prebuilt.prebuilt_levels()):
        found = run(level)
        assert Path(found.pop("path")).name.startswith(f"{level}-")
        for name, (bits, norm) in found.items():
            assert norm == pytest.approx(compiled[name][1], rel=1e-5), (level, name)
            if number == 0:
                assert bits == compiled[name][0], (level, name)
