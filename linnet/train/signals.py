"""Signals that stop a run in good order."""

import os
import signal
import threading
from types import FrameType
from typing import Any


class Stop:
    """`with Stop() as stop:` SIGTERM, SIGINT and SIGHUP set `stop.signal` (0: none came).

    A second SIGTERM or SIGINT exits at once. A second SIGHUP does not: a shell whose terminal is closed sends one to
    its jobs, and the kernel sends another. A SIGHUP that is ignored, as under nohup, stays ignored.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        return self.signal != 0

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number != signal.SIGHUP:
            os._exit(128 + number)
        self.signal = self.signal or number
