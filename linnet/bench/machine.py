"""The machine that runs the benchmarks: its description, its allocator, and how fast it multiplies and copies."""

import ctypes
import os
import platform
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from linnet import __version__

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # the parameters of glibc's mallopt


class _Yardstick(NamedTuple):
    """A call that does only one thing, and how much of it: operations, or bytes read and written."""

    call: Callable[[], object]
    amount: int


@lru_cache(maxsize=1)
def measure_machine_limits(size: int = 2048) -> dict[str, _Yardstick]:
    """The two limits of a machine: "gemm" in float32 operations, and "copy" in bytes from and to memory."""
    a, b, c = (torch.randn(size, size) for _ in range(3))
    x = torch.zeros(16 * size * size)  # 256 MiB: larger than any cache
    y = torch.empty_like(x)
    return {
        "gemm": _Yardstick(lambda: torch.mm(a, b, out=c), 2 * size**3),
        "copy": _Yardstick(lambda: y.copy_(x), 2 * x.numel() * x.element_size()),
    }


def keep_machine_memory() -> bool:
    """Make this process keep freed memory, so that a new tensor causes no page faults; False if it cannot."""
    try:
        tune = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(tune(M_MMAP_MAX, 0)) and bool(tune(M_TRIM_THRESHOLD, -1))  # never


def describe_machine() -> dict[str, Any]:
    """The versions and the machine that the numbers depend on."""
    return {
        "linnet": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def spare_machine_memory() -> int:
    """Bytes that one job may take: half of the free memory, or 4 GiB if the system does not report it."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError):
        return 4 * 2**30
