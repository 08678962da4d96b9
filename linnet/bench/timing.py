"""Time of functions on a machine that others may use: turn by turn, medians, and what others did meanwhile."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

BUSY = (0, 1, 2, 5, 6, 7)  # the fields of /proc/stat that are work: all but idle and waiting for disks
QUIET = 0.2  # cores that others may use before a time is called disturbed


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median, least and most over the rounds, and the cores that other programs used."""

    seconds: float
    low: float
    high: float
    others: float | None


def time_in_turns(
    calls: Mapping[str, Callable[[], object]],
    rounds: int = 5,
    least: float = 0.1,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time each call once a round, in turn, so that what slows the machine for a while slows all of them.

    A sample is one call, or as many as fill `least` seconds. The first call of each is not counted.
    """
    times = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        times[name] = max(1, round(least / (time.perf_counter() - start)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    load = {name: OtherLoad() for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            with load[name]:
                start = time.perf_counter()
                for _ in range(times[name]):
                    call()
                samples[name].append((time.perf_counter() - start) / times[name])
            progress()
    return {
        name: Timing(statistics.median(found), min(found), max(found), load[name].cores)
        for name, found in samples.items()
    }


class OtherLoad:
    """`with load:` around each sample; then `load.cores` is how many cores other programs kept busy, None if unknown."""

    def __init__(self) -> None:
        self._seconds = self._busy = 0.0
        self._known = True

    def __enter__(self) -> None:
        self._before = _clocks()

    def __exit__(self, *_: object) -> None:
        wall, own, busy = (after - before for after, before in zip(_clocks(), self._before, strict=True))
        self._known = self._known and busy >= 0 and busy == busy
        self._seconds += wall
        self._busy += busy - own

    @property
    def cores(self) -> float | None:
        """Cores that others used, over all samples."""
        if not self._known or not self._seconds:
            return None
        return round(max(0.0, self._busy / self._seconds), 2)


def _clocks() -> tuple[float, float, float]:
    """Seconds by the wall, of this process on all its threads, and of all processes (NaN where no one tells)."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        busy = sum(int(fields[i]) for i in BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        busy = float("nan")
    return time.perf_counter(), time.process_time(), busy
