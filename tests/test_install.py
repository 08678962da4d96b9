"""linnet installs from a wheel, an sdist and a git repository, and works in an environment without the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from linnet import __version__
from linnet.ops.cpu.prebuilt import LEVELS, prebuilt_levels

ROOT = Path(__file__).parent.parent
HATCH = [sys.executable, "-m", "hatchling", "build"]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python"]
# Run in the new environment: where linnet comes from, that a model runs, and which kernels there are.
USE = """
import torch, linnet
from linnet.ops.cpu.build import load_cpu_build
y = linnet.create_mixer("norm", width=32, heads=2, causal=True)(torch.randn(1, 50, 32))
assert y.isfinite().all()
print(linnet.__version__, linnet.__file__, load_cpu_build().path)
"""


# The parts of a workflow that this project decides: which targets of make it runs.
STEP = re.compile(r"^\s+- run: (.+)$", re.MULTILINE)


def test_workflows_run_existing_targets() -> None:
    """Each step is a target that a contributor can run, and together they are the targets that check linnet."""
    targets, called = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)), set()
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        steps = STEP.findall(workflow.read_text())
        assert steps, workflow.name
        for step in steps:
            command, *words = step.split()
            assert command == "make" and words.pop() == "PYTHON=python" and words, step
            assert set(words) <= targets, step
            called |= set(words)
    assert called == {"test", "test-slow", "test-asan", "wheels", "docs"}


def test_workflows_try_every_supported_python() -> None:
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    (tried,) = re.findall(r"python: (\[.*\])", text)
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert json.loads(tried) == classifiers


def run(command: list[str], **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


class Environment:
    """A virtual environment of its own, which sees the packages that linnet needs, but not this checkout."""

    def __init__(self, place: Path) -> None:
        self.place = place
        run([sys.executable, "-m", "venv", "--without-pip", str(place)])
        site = Path(run([str(place / "bin" / "python"), "-c", "import site; print(site.getsitepackages()[0])"]).strip())
        shared = [path for path in sys.path if path.endswith("site-packages")]  # their own .pth files are not followed
        (site / "shared.pth").write_text("\n".join([*shared, sysconfig.get_path("purelib")]))
        # Only this on the PATH: neither a compiler nor the linnet of the checkout.
        self.variables = {"PATH": str(place / "bin"), "HOME": str(place), "OMP_NUM_THREADS": "1"}

    def install(self, what: str) -> None:
        python = str(self.place / "bin" / "python")
        variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PIP_TARGET")}
        # No isolation and no dependencies: tests use no network.
        options = ["--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
        run([*PIP, python, "install", *options, what], env=variables, cwd=self.place)

    def run(self, *command: str) -> str:
        program = str(self.place / "bin" / command[0])
        return run([program, *command[1:]], env=self.variables, cwd=self.place)

    def use(self) -> str:
        """Compute there; return the path of the kernels, or None as text."""
        version, file, kernels = self.run("python", "-c", USE).split()
        assert version == __version__
        assert Path(file).is_relative_to(self.place)
        assert self.run("linnet", "--version").split()[-1] == __version__
        assert "transnormer_t2_lm" in self.run("linnet", "list", "models")
        return kernels


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "environment")


def build(kind: str, place: Path, **variables: str) -> Path:
    run([*HATCH, "-t", kind, "-d", str(place)], cwd=ROOT, env={**os.environ, **variables})
    (found,) = place.iterdir()
    return found


def test_a_pure_wheel_installs_and_works_without_the_checkout(environment: Environment, tmp_path: Path) -> None:
    environment.install(str(build("wheel", tmp_path / "dist")))
    assert environment.use() == "None"  # no compiler, no kernels, and it computes


@pytest.mark.slow
def test_an_sdist_installs_and_trains(environment: Environment, tmp_path: Path) -> None:
    environment.install(str(build("sdist", tmp_path / "dist")))
    assert environment.use() == "None"
    settings = ["--set", "train.steps=4", "--set", "train.warmup=1"]
    environment.run("linnet", "train", "smoke", "--out", "run", *settings)
    assert (environment.place / "run" / "metrics.jsonl").stat().st_size


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this tree is not a git repository")
def test_a_git_repository_installs(environment: Environment, tmp_path: Path) -> None:
    """Of what is committed: a file that is missing from git is missing here."""
    run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(tmp_path / "repository")])
    environment.install(f"git+file://{tmp_path}/repository")
    assert environment.use() == "None"


@pytest.mark.slow
@pytest.mark.skipif(not prebuilt_levels(), reason="prebuilt kernels are for Linux on x86_64")
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")
@pytest.mark.skipif(not shutil.which("patchelf"), reason="auditwheel needs patchelf")
def test_a_platform_wheel_has_kernels_that_need_no_compiler(environment: Environment, tmp_path: Path) -> None:
    pytest.importorskip("auditwheel", reason="auditwheel is not installed")
    built = build("wheel", tmp_path / "built", LINNET_PREBUILT="1")
    assert built.name.endswith("-py3-none-linux_x86_64.whl")
    run([sys.executable, "-m", "auditwheel", "repair", "-w", str(tmp_path / "dist"), str(built)])
    (wheel,) = (tmp_path / "dist").iterdir()
    assert "-py3-none-manylinux_2_" in wheel.name
    libraries = [
        entry for entry in zipfile.ZipFile(wheel).namelist() if "/prebuilt/" in entry and entry.endswith(".so")
    ]
    assert len(libraries) == len(LEVELS)
    environment.install(str(wheel))
    kernels = Path(environment.use())
    assert kernels.is_relative_to(environment.place) and kernels.name.startswith(f"{prebuilt_levels()[0]}-")
    assert str(kernels) in environment.run("linnet", "doctor", "--json")
