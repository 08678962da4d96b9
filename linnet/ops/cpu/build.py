"""Finds the kernels or compiles them with the machine's own C++ compiler on first use, and loads them.

Compiled kernels are kept in the user's cache. They come first, then those of a platform wheel; linnet compiles only if
there are none of either.

The name of a file in the cache holds a key (source, flags, processor) and the digest of its own contents: another
version or another processor has another name, and a damaged file does not match its name and is rebuilt.
Since a library is code, nobody else may be able to write to the cache, and the very file that was verified is the one
that is loaded.
"""

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from linnet.errors import LinnetError
from linnet.ops.cpu.prebuilt import LEVELS, prebuilt_library
from linnet.storage import clean_temporary_files, open_regular_file, read_file_bytes, temporary_file_name

SOURCE = Path(__file__).parent / "source"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
# Tried in order: the first that gives a working library is kept. Apple's compiler has no OpenMP: one thread then.
VARIANTS = (
    ("-march=native", "-fopenmp"),
    ("-mcpu=native", "-fopenmp"),
    ("-march=native", "-fopenmp-simd"),
    ("-mcpu=native", "-fopenmp-simd"),
    ("-fopenmp",),
    ("-fopenmp-simd",),
)
CHECK = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).linnet_check())"
SECONDS = 300  # a compiler that takes longer is stopped


class Kernels(NamedTuple):
    """The loaded library, or a one-line reason why there is none."""

    library: ctypes.CDLL | None
    path: Path | None
    reason: str = ""
    digest: str | None = None  # the SHA-256 of the library

    def __str__(self) -> str:
        if self.library is None:
            return self.reason
        threads = "OpenMP" if self.library.linnet_openmp() else "no OpenMP: one thread"
        return f"vectors of {self.library.linnet_floats()} floats, {threads}, {self.path}"


class BuildError(LinnetError):
    """The kernels cannot be built; the message is one line."""


@cache
def built_cpu_kernels() -> Kernels:
    """The kernels, compiled if there are none; tried once per process, so that a failure is not repeated."""
    return load_cpu_build()


def load_cpu_build(again: bool = False) -> Kernels:
    """The kernels, compiled if there are none or if `again` is set."""
    try:
        ready = None if again or _cached() else prebuilt_library(cpu_build_source_key())
        if ready is not None:
            with contextlib.suppress(OSError):  # a library that does not run here counts as missing
                return _load_prebuilt(ready)
        path = (None if again else _cached()) or build_cpu_kernels(again)
        return Kernels(_load(path), path, digest=path.stem.split("-")[1])
    except (BuildError, OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        return Kernels(None, None, " ".join(str(error).split()))


def cpu_build_folder() -> Path:
    """Where compiled kernels are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "linnet" / "kernels"


def cpu_build_key() -> str:
    """A digest of everything that determines the compiled code: source, flags, processor."""
    parts = [" ".join(FLAGS), repr(VARIANTS), platform.system(), _processor()]
    return _digest(*parts, *_source())


def cpu_build_source_key() -> str:
    """A digest of the source and the flags, which a prebuilt library has in its name."""
    return _digest(" ".join(FLAGS), *_source())


def _source() -> list[str]:
    return [path.name + "\n" + path.read_text() for path in sorted(SOURCE.iterdir()) if path.is_file()]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """A description that distinguishes kinds of processors."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.split(":")[0].strip() in ("flags", "Features")), "")
    return f"{platform.machine()} {platform.processor()} {flags}"


def find_cpu_build() -> Path | None:
    """The kernels that need no compiler: in the cache, whole and ours, or else those of the wheel."""
    return _cached() or prebuilt_library(cpu_build_source_key())


def _cached() -> Path | None:
    with contextlib.suppress(OSError, RuntimeError, BuildError):  # a folder that may not be read, a user without a home
        place = cpu_build_folder().resolve()
        _check_private(place)
        for path in sorted(place.glob(f"{cpu_build_key()}-*.so")):
            with contextlib.suppress(OSError, BuildError):
                os.close(_verified(path))
                return path
    return None


def refused_cpu_build() -> str:
    """Why no code may be loaded from the cache; empty if it may."""
    with contextlib.suppress(OSError, RuntimeError):
        try:
            _check_private(cpu_build_folder().resolve())
        except BuildError as error:
            return str(error)
    return ""


def _check_private(place: Path) -> None:
    """Refuse a folder, without links in its path, that another user could fill; ssh protects its keys by the same rule.

    The folder and all folders above it must belong to the user or root, and others may not write there. A folder above
    may be writable if it has the sticky bit, like /tmp: others cannot rename the user's files there.
    """
    for path in filter(Path.exists, (place, *place.parents)):
        found = path.stat()
        if found.st_uid not in (os.getuid(), 0):
            raise BuildError(f"{path} belongs to another user: no code is loaded from {place}")
        sticky = path != place and found.st_mode & stat.S_ISVTX
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
            raise BuildError(f"{path} can be written by others: no code is loaded from {place} (chmod go-w {path})")


def _verified(path: Path) -> int:
    """A descriptor of a library that is ours alone and has the SHA-256 in its name."""
    descriptor = open_regular_file(path, os.O_RDONLY | os.O_NOFOLLOW)
    found = os.fstat(descriptor)
    ours = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not ours or read_file_bytes(descriptor, found.st_size)[1] != path.stem.split("-")[1]:
        os.close(descriptor)
        raise BuildError(f"{path} is damaged or not ours")
    return descriptor


def _load(path: Path) -> ctypes.CDLL:
    """The library, loaded through the verified descriptor where the system has names for descriptors.

    It stays open: the loader identifies a library by its name, so the number must not be reused for another file.
    """
    name = f"/proc/self/fd/{_verified(path)}"
    return ctypes.CDLL(name if os.path.exists(name) else str(path))


def _load_prebuilt(path: Path) -> Kernels:
    """A library of the wheel, by its own name: it finds OpenMP in a folder of the wheel."""
    library = ctypes.CDLL(str(path))
    if library.linnet_check() != 0:
        raise OSError(f"{path} computes wrong results on this processor")
    return Kernels(library, path, digest=hashlib.sha256(path.read_bytes()).hexdigest())


def build_prebuilt(place: Path) -> list[Path]:
    """Compile one library per level of x86-64 into a new folder, for a wheel."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise BuildError(
            f"wheels with kernels are for Linux on x86_64, not {platform.system()} on {platform.machine()}"
        )
    place.mkdir(parents=True)
    libraries = [place / f"{level}-{cpu_build_source_key()}.so" for level in LEVELS]
    for level, library in zip(LEVELS, libraries, strict=True):
        command = [_compiler(), *FLAGS, f"-march={level}", "-fopenmp", str(SOURCE / "kernels.cpp"), "-o", str(library)]
        if reason := _run(command, f"{command[0]} failed"):
            raise BuildError(reason)
    return libraries


def build_cpu_kernels(again: bool = False) -> Path:
    """Compile, try in a process of its own, and put under the final name in one step; `again`: also if it is there."""
    if os.name != "posix":
        raise BuildError(f"the kernels are not built on {platform.system()}")
    place = cpu_build_folder()
    try:
        place = place.resolve()
        _check_private(place)  # before anything is written there, and again afterwards
        for path in (*reversed(place.parents), place):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
        _check_private(place)
        with _alone(place):
            clean_temporary_files(place, shared=True)  # leftovers of a killed build
            scratch = temporary_file_name(place / "kernels")
            scratch.mkdir(mode=0o700)
            try:
                return (None if again else _cached()) or _compile(scratch, place)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise BuildError(f"{place} cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Let only one process build these kernels while others wait; the lock ends with its process."""
    import fcntl

    lock = open_regular_file(place / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: each process builds its own
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _compiler() -> str:
    """The first C++ compiler on the PATH."""
    compiler = next((found for found in map(shutil.which, COMPILERS) if found), None)
    if compiler is None:
        raise BuildError(f"no C++ compiler was found: {', '.join(COMPILERS)} are not on the PATH")
    return compiler


def _compile(scratch: Path, place: Path) -> Path:
    compiler = _compiler()
    print("linnet: compiling kernels, once, about 20 s", file=sys.stderr, flush=True)
    library, reasons = scratch / "kernels.so", []
    for variant in VARIANTS:
        command = [compiler, *FLAGS, *variant, str(SOURCE / "kernels.cpp"), "-o", str(library)]
        trial = [sys.executable, "-c", CHECK, str(library)]
        reason = _run(command, f"{compiler} failed") or _run(trial, "the compiled kernels do not work here")
        if not reason:
            library.chmod(0o700)  # whatever the umask is
            final = place / f"{cpu_build_key()}-{hashlib.sha256(library.read_bytes()).hexdigest()}.so"
            os.replace(library, final)
            return final
        reasons.append(reason)
    raise BuildError(reasons[0])


def _run(command: list[str], what: str) -> str:
    """Run a command: empty on success, else the failure in one line; a time-out raises, so no other flags are tried."""
    pipe = subprocess.PIPE
    # A session of its own: a compiler is several processes, and all of them must end.
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            _, said = process.communicate(timeout=SECONDS)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise BuildError(f"{what}: it took more than {SECONDS} seconds") from error
    if process.returncode == 0:
        return ""
    lines = [line for line in said.splitlines() if "error" in line] or said.splitlines() or [""]
    return f"{what} (exit code {process.returncode}): {lines[0].strip()[:200]}"
