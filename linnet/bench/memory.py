"""Peak memory of pieces of work, each in a fresh process, so that none hides in what another has left behind.

A module that measures calls `serve` when it is run as a program. That process imports what is needed once, and
forks for each job; `peaks` starts it and hands it the jobs, which are JSON.
"""

import contextlib
import gc
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from linnet.errors import LinnetError

Job = Mapping[str, Any]
UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
# glibc would keep what is freed, in pieces that vary from run to run; so it gives every large block back at once.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def peaks(module: str, jobs: Sequence[Job]) -> Iterator[int]:
    """For each job the bytes that its work needed at most, above what was there when it began."""
    program = [sys.executable, "-P", "-m", module]  # -P: modules of the current folder are not meant
    pipe, environment = subprocess.PIPE, {**os.environ, **ALLOCATOR}
    # A session of its own: Ctrl-C reaches us alone, and we end the server with the job that it has forked.
    with subprocess.Popen(
        program, stdin=pipe, stdout=pipe, text=True, env=environment, start_new_session=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            for job in jobs:
                server.stdin.write(json.dumps(job) + "\n")
                server.stdin.flush()
                answer = server.stdout.readline()
                if not answer.strip().isdecimal():
                    raise LinnetError(f"no peak of {dict(job)}: {answer.strip() or 'its process has died'}")
                yield int(answer)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def serve(warm_up: Callable[[Job], object], prepare: Callable[[Job], Callable[[], object]]) -> None:
    """Answer each job on standard input with the peak of the work that `prepare` returns for it.

    `warm_up` runs before that, here, where it makes libraries load what they load at first use, and again after
    the fork, where it makes them take what they keep. It must not start threads: a fork does not copy them.
    """
    for line in sys.stdin:
        job = json.loads(line)
        warm_up(job)
        child = os.fork()
        if child == 0:
            _answer(job, warm_up, prepare)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            print("the system has ended it; perhaps there is too little memory", flush=True)


def _answer(job: Job, warm_up: Callable[[Job], object], prepare: Callable[[Job], Callable[[], object]]) -> None:
    """The peak of one job, or why there is none, as a line."""
    try:
        warm_up(job)
        print(_peak(prepare(job)), flush=True)
    except (RuntimeError, MemoryError) as error:
        print(" ".join(str(error).split()) or type(error).__name__, flush=True)


def _peak(work: Callable[[], object]) -> int:
    """Bytes by which the largest resident size of this process grows while it works."""
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * UNIT
