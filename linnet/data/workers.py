"""Work spread over processes, each of which ends with the process that started it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from linnet.errors import LinnetError

J = TypeVar("J")
R = TypeVar("R")


def count_worker_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def work_in_workers(function: Callable[[J], R], jobs: Sequence[J], workers: int) -> Iterator[R]:
    """The results of `function` on each job as they are done, computed in this process or in several."""
    if min(workers, len(jobs)) <= 1:
        yield from map(function, jobs)
        return
    # Spawn: a fork of a process in which torch has started threads could hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), context, initializer=_follow_parent) as pool:
        try:
            for future in as_completed([pool.submit(function, job) for job in jobs]):
                yield future.result()
        except BaseException as error:
            pool.shutdown(cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise LinnetError("a worker process died, perhaps for lack of memory: start again") from None
            raise


def _follow_parent() -> None:
    """Ignore Ctrl-C, because the parent stops its workers; if the parent is killed, exit too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this runs in a worker
    parent.join()
    os._exit(1)  # otherwise a worker would wait forever, because it holds the other end of its own pipe
