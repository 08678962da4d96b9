"""Peak memory of pieces of work, each in a fresh process, so that none hides in what another has left behind.

A module that measures calls `serve` when it is run as a program. That process imports what is needed once, and
forks for each job; `peak_server` starts it and hands it the jobs, which are JSON.
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
UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
# glibc would keep what is freed, in pieces that vary from run to run; so it gives every large block back at once.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536"}


@contextlib.contextmanager
def peak_server(module: str, most: int = 0, longest: int = 0) -> Iterator[Callable[[Job], int]]:
    """A function from a job to the bytes that its work needed at most, above what was there when it began.

    A job that fails, or that needs more than `most` bytes or `longest` seconds, is a one-line error; 0: no limit.
    """
    program = [sys.executable, "-P", "-m", module]  # -P: modules of the current folder are not meant
    pipe, environment = subprocess.PIPE, {**os.environ, **ALLOCATOR}
    # A session of its own: Ctrl-C reaches us alone, and we end the server with the job that it has forked.
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


def serve(warm_up: Callable[[Job], object], prepare: Callable[[Job], Callable[[], object]]) -> None:
    """Answer each job on standard input with the peak of the work that `prepare` returns for it.

    `warm_up` runs before that, here and once for jobs that differ in size only, where it makes libraries load what
    they load at first use, and again after the fork, where it makes them take what they keep. It must not start
    threads: a fork does not copy them.
    """
    warm = set()
    for line in sys.stdin:
        job, most, longest = json.loads(line)
        kind = json.dumps({key: value for key, value in job.items() if not isinstance(value, int)})
        if kind not in warm:
            warm.add(kind)
            with contextlib.suppress(Exception):  # the child will say what is wrong
                warm_up(job)
        gc.freeze()  # what is here stays, and the child need not look through it
        child = os.fork()
        if child == 0:
            signal.alarm(longest)
            _answer(job, most, warm_up, prepare)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == signal.SIGALRM:
            print(f"takes more than {longest} seconds", flush=True)
        elif status:
            print("the system has ended it; perhaps there is too little memory", flush=True)


def _answer(
    job: Job, most: int, warm_up: Callable[[Job], object], prepare: Callable[[Job], Callable[[], object]]
) -> None:
    """The peak of one job, or why there is none, as a line."""
    try:
        warm_up(job)
        if most:
            _limit(most)
        print(_peak(prepare(job)), flush=True)
    except Exception as error:  # noqa: BLE001  whatever it raises is the answer; nothing is left to protect
        lacks = isinstance(error, MemoryError) or "allocate memory" in str(error)
        told = " ".join(str(error).split())[:200] or type(error).__name__
        print(f"needs more than {most / 2**30:.3g} GiB" if lacks and most else told, flush=True)


def _limit(most: int) -> None:
    """Refuse this process more than `most` bytes above what it has."""
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + most,) * 2)


def _peak(work: Callable[[], object]) -> int:
    """Bytes by which the largest resident size of this process grows while it works."""
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * UNIT
