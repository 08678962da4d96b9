"""The kernels that a platform wheel carries: compiled in advance, one library per level of the processor.

A wheel from `make wheels` has them in the folder `prebuilt` beside this file, next to the Python code and as trusted as
it. A checkout and the pure wheel have none.
"""

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
PREBUILT = Path(__file__).parent / "prebuilt"
# The levels of x86-64, best first, as compilers name them, and the flags of CPUINFO that each needs beyond the
# next. They give vectors of 16, 8 and 4 floats.
LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"},
    "x86-64": set[str](),
}


def prebuilt_levels() -> list[str]:
    """The levels that this processor and operating system run, best first; empty if they run none."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return []
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    names = list(LEVELS)
    return [name for i, name in enumerate(names) if all(LEVELS[each] <= flags for each in names[i:])]


def prebuilt_library(source: str) -> Path | None:
    """The library for this processor, compiled from the source with this digest, if the package has one."""
    named = (PREBUILT / f"{level}-{source}.so" for level in prebuilt_levels())
    return next(filter(Path.is_file, named), None)
