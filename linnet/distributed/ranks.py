"""The processes that torchrun started, one rank each: who they are, what they tell each other, how they fail together.

Without torchrun there is one rank, and nothing here imports torch. Two rules keep ranks from waiting for each other:

- Before the training and inside a checkpoint, ranks meet only in `share`. A rank that fails there tells the others by
  the same call, so all of them end with its line, which rank 0 prints.
- In an update, what ranks decide goes through `most`, `sums` and `share`: signals, and numbers that are not finite. Any
  other failure there ends one process with its line; the others notice that it is gone and end too. A note in the store
  of torchrun, which outlives the ranks, says whether a line has been printed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from linnet.errors import InputError, LinnetError

MEETING = 25.0  # seconds that ranks wait for each other at the start
WAITING = 1800.0  # seconds that a rank waits for another one later, unless `distributed.timeout` says otherwise
GONE = "a rank is lost: another one has ended or does not answer; `linnet resume` continues from the last checkpoint"
LOST = ("connection closed", "connection reset", "broken pipe", "timed out", "connection refused", "gloo", "nccl")


class RankError(LinnetError):
    """A failure that all ranks know about, with the exit code of the rank that failed."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class Ranks:
    """This process among those of a run. If it is the only one, the methods return their arguments unchanged."""

    rank: int = 0
    world: int = 1
    local: int = 0  # its number on its machine
    launched: bool = False  # by torchrun
    restarts: int = 0  # how often torchrun has started the ranks again
    restartable: bool = False  # whether it may
    joined: bool = False
    updating: bool = False  # whether the other ranks may be inside an update, where they do not listen
    settled: bool = False  # whether every rank knows of the failure that ends this one
    store: Any = None  # of torchrun, once joined

    @property
    def first(self) -> bool:
        """Whether this rank prints and writes."""
        return self.rank == 0

    def join(self, timeout: float = WAITING) -> None:
        """Connect to the other ranks; raises if one is missing. `timeout` limits how long any rank may wait later."""
        if self.world == 1 or self.joined:
            return
        import torch
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        gpu = torch.cuda.is_available() and dist.is_nccl_available()
        if gpu:
            torch.cuda.set_device(self.local)
        limit = timedelta(seconds=MEETING)
        try:
            _wait_for_store(self.rank)
            found: Any = rendezvous("env://", self.rank, self.world, timeout=limit)
            store = PrefixStore(f"linnet/{self.restarts}", next(found)[0])  # the store outlives a restart
            store.set(f"here/{self.rank}", "")
            store.wait([f"here/{rank}" for rank in range(self.world)], limit)
            store.set_timeout(timedelta(seconds=timeout))
            backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
            long = timedelta(seconds=timeout)
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world, timeout=long)
        except (RuntimeError, ValueError, OSError) as error:  # torch's own errors are RuntimeErrors
            self.settled = True  # nobody can be told
            why = str(error).split("\n")[0]
            raise InputError(
                f"rank {self.rank} of {self.world} did not meet the others within {MEETING:.0f} seconds: {why}"
            ) from error
        self.joined, self.store = True, store

    def leave(self) -> None:
        """Leave the group. Call it only after a success, because it waits for the other ranks."""
        if self.joined:
            import torch.distributed as dist

            dist.destroy_process_group()
            self.joined = False

    def end(self, code: int) -> None:
        """End this process at once if it is one of several; does nothing otherwise.

        A model may still hold a group whose threads run. Python's usual end aborts on them, or waits for them forever.
        """
        if self.world > 1:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)

    def share(self, text: str = "") -> list[str]:
        """The texts of all ranks, in order; raises on each of them if one has failed instead."""
        if self.world == 1:
            return [text]
        return [told["text"] for told in self._told({"text": text})]

    @contextmanager
    def training(self) -> Iterator[None]:
        """Context around the updates: inside it, a rank that fails cannot tell the others."""
        self.updating = True
        try:
            yield
        except BaseException:
            if self.world > 1 and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it soon, and the line is not printed yet
            raise
        self.updating = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Context around work between two updates in which ranks communicate only through `share`."""
        before, self.updating = self.updating, False
        yield
        self.updating = before

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Context that rank 0 finishes before the others enter, so that they read the cache that it fills."""
        if not self.first:
            self.share()
        yield
        if self.first:
            self.share()

    def most(self, *numbers: float) -> list[float]:
        """The maximum of each number over the ranks."""
        return self._reduced(numbers, "MAX") if self.world > 1 else list(numbers)

    def sums(self, *numbers: float) -> list[float]:
        """The sum of each number over the ranks, in float64: exact for counts below 2**53."""
        return self._reduced(numbers, "SUM") if self.world > 1 else list(numbers)

    def fail(self, message: str, code: int) -> tuple[str, int]:
        """The line that this process should print ("" for none) and its exit code, after telling the other ranks."""
        if self.world == 1:
            return message, code
        if not self.settled and _is_loss(message):
            return (GONE if self._first_to_end() else ""), 1
        if not self.settled and self.updating:
            self._first_to_end()
            return f"rank {self.rank}: {message}", code
        if not self.settled:
            try:
                self.join()
                self._told({"failure": message, "code": code})
            except RankError as error:
                message, code = str(error), error.exit_code
            except LinnetError:  # nobody can be told
                return f"rank {self.rank}: {message}", code
            except RuntimeError:  # another rank has ended before
                return (f"rank {self.rank}: {message}" if self._first_to_end() else ""), code
        return (message if self.first else ""), code

    def _first_to_end(self) -> bool:
        """Note that this rank ends alone; returns whether it is the first to do so, and True if that is unknown."""
        if self.store is None:
            return True
        try:
            return bool(self.store.add("ended", 1) == 1)
        except RuntimeError:  # torchrun is gone too
            return True

    def _told(self, note: dict[str, object]) -> list[dict[str, Any]]:
        """The notes of all ranks; raises the first failure among them."""
        import torch
        import torch.distributed as dist

        self.join()
        data = json.dumps(note).encode()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(data)]))
        longest = max(int(size) for size in sizes)
        rooms = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world)]
        dist.all_gather(rooms, torch.frombuffer(bytearray(data.ljust(longest)), dtype=torch.uint8))
        notes = [json.loads(room.numpy().tobytes()) for room in rooms]
        for told in notes:
            if "failure" in told:
                self.settled = True
                raise RankError(told["failure"], told["code"])
        return notes

    def _reduced(self, numbers: Sequence[float], how: str) -> list[float]:
        import torch
        import torch.distributed as dist

        found = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(found, getattr(dist.ReduceOp, how))
        return [float(number) for number in found]


@lru_cache(maxsize=1)
def launched_ranks() -> Ranks:
    """This process among those that torchrun started; one alone if it was not torchrun."""
    if os.environ.get("TORCHELASTIC_RUN_ID") is None:
        return Ranks()
    return Ranks(
        rank=_number(os.environ.get("RANK")),
        world=max(1, _number(os.environ.get("WORLD_SIZE"))),
        local=_number(os.environ.get("LOCAL_RANK")),
        launched=True,
        restarts=_number(os.environ.get("TORCHELASTIC_RESTART_COUNT")),
        restartable=_number(os.environ.get("TORCHELASTIC_MAX_RESTARTS")) > 0,
    )


def _wait_for_store(rank: int) -> None:
    """Wait until the store where ranks meet can be reached, or raise; torch alone takes twice its limit and more."""
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return  # this rank is to open it
    place, end = (os.environ.get("MASTER_ADDR", ""), _number(os.environ.get("MASTER_PORT"))), time.monotonic() + MEETING
    while True:
        try:
            socket.create_connection(place, timeout=MEETING).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise OSError(f"{place[0]}:{place[1]}: {error.strerror or error}") from None
            time.sleep(0.2)


def _is_loss(message: str) -> bool:
    """Whether this is torch's error message for a rank that does not answer."""
    return any(word in message.lower() for word in LOST)


def _number(text: str | None) -> int:
    """A number that torchrun has set; 0 if it has not."""
    with suppress(ValueError, TypeError):
        return int(text)  # type: ignore[arg-type]
    return 0
