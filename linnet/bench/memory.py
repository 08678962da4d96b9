"""Peak memory of jobs, each in a fresh process, so that no job reuses memory that another has left behind.

A benchmark module calls `serve` when it is run as a program. That process imports everything once and forks for each
job. `peak_server` starts it and sends it the jobs as JSON.
"""

import contextlib
import gc
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from linnet.errors import LinnetError

Job = Mapping[str, Any]
UNIT = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss
# glibc would keep freed memory, in amounts that vary from run to run; this makes it return large blocks at once.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536"}


@contextlib.contextmanager
def peak_memory_server(module: str, most: int = 0, longest: int = 0) -> Iterator[Callable[[Job], int]]:
    """A function that returns the peak memory of a job in bytes, above what was in use when it started.

    It raises if a job fails, or needs more than `most` bytes or `longest` seconds; 0 means no limit.
    """
    program = [sys.executable, "-P", "-m", module]  # -P: do not import from the current folder
    pipe, environment = subprocess.PIPE, {**os.environ, **ALLOCATOR}
    # With a session of its own the server gets no Ctrl-C, and we can end it together with the job that it forked.
    with subprocess.Popen(
        program, stdin=pipe, stdout=pipe, text=True, env=environment, start_new_session=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        ask, answers = server.stdin, server.stdout

        def peak(job: Job) -> int:
            with contextlib.suppress(BrokenPipeError):
                ask.write(json.dumps([job, most, longest]) + "\n")
                ask.flush()
            answer = answers.readline()
            if not answer.strip().isdecimal():
                raise LinnetError(answer.strip() or "the process that measures memory has died")
            return int(answer)

        try:
            yield peak
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def serve_memory_jobs(warm_up: Callable[[Job], object], prepare: Callable[[Job], Callable[[], object]]) -> None:
    """Answer each job on standard input with the peak of the work that `prepare` returns for it.

    `warm_up` runs twice before that: in the server, once for jobs that differ only in size, so that libraries load what
    they load on first use; and again after the fork, so that they allocate what they keep. It must not start threads,
    because a fork does not copy them.
    """
    warm = set()
    for line in sys.stdin:
        job, most, longest = json.loads(line)
        kind = json.dumps({key: value for key, value in job.items() if not isinstance(value, int)})
        if kind not in warm:
            warm.add(kind)
            with contextlib.suppress(Exception):  # the child will report the error
                warm_up(job)
        gc.freeze()  # the child need not scan the objects that exist now
        child = os.fork()
        if child == 0:
            signal.alarm(longest)
            _answer(job, most, warm_up, prepare)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == signal.SIGALRM:
            print(f"takes more than {longest} seconds", flush=True)
        elif status:
            print("the system killed it; there may be too little memory", flush=True)


def _answer(
    job: Job, most: int, warm_up: Callable[[Job], object], prepare: Callable[[Job], Callable[[], object]]
) -> None:
    """Print the peak of one job, or why there is none, as one line."""
    try:
        warm_up(job)
        if most:
            _limit(most)
        print(_peak(prepare(job)), flush=True)
    except Exception as error:  # noqa: BLE001  any error is the answer, and this process ends next
        lacks = isinstance(error, MemoryError) or "allocate memory" in str(error)
        told = " ".join(str(error).split())[:200] or type(error).__name__
        print(f"needs more than {most / 2**30:.3g} GiB" if lacks and most else told, flush=True)


def _limit(most: int) -> None:
    """Limit this process to `most` bytes more than it has."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + most,) * 2)


def _peak(work: Callable[[], object]) -> int:
    """Bytes by which the peak resident size of this process grows during the work."""
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * UNIT
