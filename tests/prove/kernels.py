"""Promise 14b: the compiled kernels neither read nor write outside their tensors, alone and in eight threads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from linnet.ops.backend import no_cpu_backend
from tests.prove.promise import Skip, Trials, promise
from tests.prove.runs import ROOT

WRAPPER = """#!/bin/sh
unset LD_PRELOAD
exec g++ -fsanitize={0} -fno-sanitize-recover=undefined -fno-omit-frame-pointer "$@" -g1 -O1
"""


@promise(
    "14b",
    "The compiled kernels touch no memory but that of their tensors, and eight threads do not disturb each other.",
    "Random shapes, strides, masks and segments, forward and backward: compared with PyTorch's result, with the "
    "kernels built by g++ with AddressSanitizer and UndefinedBehaviorSanitizer; then bitwise in eight threads at once.",
)
def kernels_are_safe(trials: Trials) -> None:
    """A process with sanitizers, and one with eight threads."""
    if no_cpu_backend():
        raise Skip(f"there are no kernels: {no_cpu_backend()}")
    for name, arguments in (("eight threads", ["threads", trials.number(1000, 40)]), ("sanitizers", ["alone", 1500])):
        environment = dict(os.environ)
        if name == "sanitizers":
            if trials.short:
                continue  # building them takes minutes
            if shutil.which("g++") is None:
                trials.skipped.append("the sanitizers need g++")
                continue
            environment |= _sanitized(trials.folder)
        command = [sys.executable, "-m", "tests.prove.fuzz", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        counted = [line.split() for line in done.stdout.splitlines() if line.startswith("cases ")]
        cases = int(counted[-1][1]) if counted else 0
        trials.count += cases
        trials.measured[f"Cases, {name}"] = cases
        trials.check(done.returncode == 0 and cases > 0, f"{name}: {done.stdout[-300:]} {done.stderr[-1500:]}")


def _sanitized(folder: Path) -> dict[str, str]:
    """The environment in which the kernels are built with sanitizers and loaded with their run-time."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "c++").write_text(WRAPPER.format("address,undefined"))
    (tools / "c++").chmod(0o755)
    files = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
        for name in ("libasan.so", "libstdc++.so")
    ]
    (folder / "cache").mkdir(mode=0o700)
    return {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "LD_PRELOAD": " ".join(file.strip() for file in files),
    }
