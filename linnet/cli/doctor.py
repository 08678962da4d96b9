"""`linnet doctor`: check the machine and the installation, or a broken run, and say what to do."""

import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from linnet import __version__
from linnet.cli import Json, print_cli_json, print_cli_table
from linnet.errors import missing_extra_error_text

DISTRIBUTION = "linnet-attention"  # the name in pyproject.toml; another project has the name linnet on PyPI
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")  # x86-64, then ARM


class _Check(NamedTuple):
    """One line of the diagnosis; `status` is "ok", "missing" (optional) or "wrong" (must be fixed)."""

    name: str
    status: str
    found: str
    advice: str = ""


def doctor_command(
    run: Annotated[
        Path | None, typer.Argument(help="The folder of a broken run, to see what it still holds.", metavar="[RUN]")
    ] = None,
    build: Annotated[bool, typer.Option("--build", help="Compile the CPU kernels, even if they exist.")] = False,
    json: Json = False,
) -> None:
    """Check the installation, or a broken run.

    With RUN, shows what the folder of a run still holds and what to do with it. Changes nothing.

    Without RUN, checks versions, extras, processor, memory, data sets, compiled kernels and backends. "missing" marks
    something optional, with advice on how to get it. "wrong" marks a problem to fix, and the exit code is then 1.

    \b
    Examples:
      linnet doctor
      linnet doctor --build
      linnet doctor --json
      linnet doctor runs/broken
    """
    if run is not None:
        _examine_run(run, json)
        return
    checks = [*_packages(), *_machine(), _data(os.environ.get("LINNET_DATA")), _kernels(build), *_backends()]
    healthy = all(check.status != "wrong" for check in checks)
    if json:
        print_cli_json({"ok": healthy, "checks": [check._asdict() for check in checks]})
    else:
        print_cli_table(["status", "what", "found", "what to do"], [[c.status, c.name, *c[2:]] for c in checks])
    if not healthy:
        raise typer.Exit(1)


def _examine_run(folder: Path, json: bool) -> None:
    """Print what a run still holds and what to do; the exit code is 1 if a part is damaged."""
    from linnet.models.loading import load_model
    from linnet.screen import Screen
    from linnet.storage.salvage import salvage_run

    warn = Screen(quiet=json).warn
    found = salvage_run(folder, lambda place, step: load_model(place, step, warn))
    healthy = all(part.ok for part in found.parts)
    if json:
        checks = [part._asdict() for part in found.parts]
        print_cli_json({"folder": str(folder), "ok": healthy, "checks": checks, "advice": found.advice})
    else:
        print_cli_table(
            ["status", "what", "found"], [["ok" if p.ok else "wrong", p.name, p.found] for p in found.parts]
        )
        for line in found.advice:
            print(line)
    if not healthy:
        raise typer.Exit(1)


def _packages() -> Iterator[_Check]:
    """Python, linnet, the core packages, then one check per extra."""
    yield _Check("python", "ok", platform.python_version())
    if _version(DISTRIBUTION) is None:
        yield _Check("linnet", "wrong", f"{__version__}, run from source", "pip install -e .")
        return
    yield _Check("linnet", "ok", __version__)
    extras: dict[str, list[str]] = {}
    for requirement in requires(DISTRIBUTION) or []:
        package = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        group = re.search(r"extra == ['\"](\w+)", requirement)
        extras.setdefault(group[1] if group else "", []).append(package)
    for package in extras.pop("", []):
        found = _version(package)
        reinstall = "" if found else f"pip install {package}"
        yield _Check(package, "ok" if found else "wrong", found or "not installed", reinstall)
    for extra, packages in extras.items():
        absent = [package for package in packages if _version(package) is None]
        found = ", ".join(f"{package} {_version(package)}" for package in packages if package not in absent)
        lacking = f"{found}; lacks {', '.join(absent)}" if found else f"lacks {', '.join(absent)}"
        advice = missing_extra_error_text(extra) if absent else ""
        yield _Check(f"extra {extra}", "missing" if absent else "ok", lacking if absent else found, advice)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _machine() -> Iterator[_Check]:
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    words = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    flags = [flag for flag in CPU_FLAGS if flag in words] or [torch.backends.cpu.get_cpu_capability()]
    yield _Check("processor", "ok", f"{platform.machine()}, {os.cpu_count()} cores, {' '.join(flags)}")
    yield _Check("threads", "ok", f"{torch.get_num_threads()} (torch)")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield _Check("memory", "ok", f"{memory / 2**30:.1f} GiB")
    if torch.cuda.is_available():
        yield _Check("gpu", "ok", torch.cuda.get_device_name())
    else:
        yield _Check("gpu", "missing", "none that torch can use", "nothing: every mechanism runs on the CPU")


def _data(place: str | None) -> _Check:
    advice = "set LINNET_DATA to the folder that holds your data sets"
    if not place:
        return _Check("LINNET_DATA", "missing", "not set", advice)
    if not Path(place).is_dir():
        return _Check("LINNET_DATA", "wrong", f"{place} is not a folder", advice)
    found = sorted(entry.name for entry in Path(place).iterdir() if entry.is_dir())
    if not found:
        return _Check("LINNET_DATA", "missing", f"{place} is empty", "put data sets there, one folder each")
    return _Check("LINNET_DATA", "ok", f"{place}: {', '.join(found)}")


def _kernels(build: bool) -> _Check:
    """Whether the CPU kernels are compiled, and if not, why; compiles them only if `build`."""
    from linnet.ops.cpu.build import COMPILERS, find_cpu_build, load_cpu_build, refused_cpu_build

    if not build and find_cpu_build() is None and not refused_cpu_build():
        if not any(map(shutil.which, COMPILERS)):
            advice = "install g++ or clang, then `linnet doctor --build`; until then the PyTorch path is used"
            absent = f"no C++ compiler: {', '.join(COMPILERS)} are not on the PATH"
            return _Check("cpu kernels", "missing", absent, advice)
        advice = "nothing: the first use compiles them, or `linnet doctor --build`"
        return _Check("cpu kernels", "missing", "not compiled yet", advice)
    found = load_cpu_build(again=build)  # compiles nothing if the cache is refused
    if found.library is not None:
        return _Check("cpu kernels", "ok", str(found))
    fix = "install g++ or clang" if "no C++ compiler" in found.reason else "fix that"
    advice = f"{fix}, then `linnet doctor --build`; until then the PyTorch path is used"
    return _Check("cpu kernels", "wrong" if build else "missing", str(found), advice)


def _backends() -> Iterator[_Check]:
    """LINNET_BACKEND, then for each op the backends that work here, found by calling them."""
    import torch

    from linnet import ops
    from linnet.errors import InputError
    from linnet.ops.backend import NAMES
    from linnet.ops.cpu.build import find_cpu_build

    wanted = os.environ.get("LINNET_BACKEND")
    known = not wanted or wanted in NAMES
    advice = "" if known else f"set LINNET_BACKEND to one of {', '.join(NAMES)}, or unset it"
    yield _Check("LINNET_BACKEND", "ok" if known else "wrong", wanted or "not set: linnet chooses", advice)
    x = torch.ones(1, 1, 4, 8)
    for op in (ops.linear_attention, ops.exp_attention, ops.block_attention):
        usable = []
        for backend in NAMES:
            if backend == "cpu" and find_cpu_build() is None:  # do not compile during a diagnosis
                continue
            try:
                op(x, x, x, causal=True, backend=backend)
            except (InputError, ImportError):
                continue
            usable.append(backend)
        status = "ok" if "torch" in usable else "wrong"
        yield _Check(op.__name__, status, f"backends {', '.join(usable) or 'none'}")
