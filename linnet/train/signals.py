"""Stop a run cleanly on a signal."""

import os
import signal
import threading
from types import FrameType
from typing import Any


class Stop:
    """Inside `with Stop() as stop:`, SIGTERM, SIGINT and SIGHUP set `stop.signal` (0 if none arrived).

    A second SIGTERM or SIGINT exits at once. A second SIGHUP does not: when a terminal closes, the shell sends one to
    its jobs and the kernel sends another. If SIGHUP is ignored, as under nohup, it stays ignored.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():  # handlers can only be set there
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
