"""Time of functions on a machine that others may use: by turns, medians, and what others did meanwhile."""

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BUSY = (0, 1, 2, 5, 6, 7)  # the fields of /proc/stat that are work: all but idle and waiting for disks


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, the median, least and most; `others`: cores that other programs kept busy meanwhile."""

    seconds: float
    low: float
    high: float
    others: float | None  # None where the system does not tell


def time_in_turns(
    calls: Mapping[str, Callable[[], object]],
    rounds: int = 5,
    least: float = 0.1,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time each call once a round, in a random order, so that what slows the machine for a while slows all of them.

    A sample is one call, or as many as fill `least` seconds; the first call of each is not counted. Of the samples
    of a call the quieter half counts: those during which other programs did least.
    """
    return take_turns(calls, {name: warm_up(call) for name, call in calls.items()}, rounds, least, progress=progress)


def warm_up(call: Callable[[], object]) -> float:
    """Seconds of a call, once it has made what it makes at first use; one that takes half a second is called once."""
    for _ in range(2):
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        if seconds >= 0.5:
            break
    return seconds


def take_turns(
    calls: Mapping[str, Callable[[], object]],
    expected: Mapping[str, float],
    rounds: int,
    least: float,
    slow: float = math.inf,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """`time_in_turns` of calls whose seconds are known roughly; one slower than `slow` takes part in 3 rounds only."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    order, chance = list(calls), random.Random(0)
    for turn in range(rounds):
        chance.shuffle(order)
        for name in order:
            if turn < 3 or expected[name] <= slow:
                samples[name].append(_sample(calls[name], max(1, round(least / max(expected[name], 1e-7)))))
            progress()
    return {name: _quieter_half(found) for name, found in samples.items()}


def _sample(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Cores that others used, and seconds of a call."""
    before = _clocks()
    for _ in range(repeats):
        call()
    wall, own, busy = (now - then for now, then in zip(_clocks(), before, strict=True))
    others = (busy - own) / wall  # the system counts in hundredths of a second: too coarse for a very short sample
    return others if math.isnan(others) else min(max(others, 0.0), os.cpu_count() or 1), wall / repeats


def _quieter_half(samples: Sequence[tuple[float, float]]) -> Timing:
    """What the samples come to; without knowledge of others, all of them count."""
    known = not any(math.isnan(others) for others, _ in samples)
    chosen = sorted(samples)[: len(samples) // 2 + 1] if known else samples
    seconds = [second for _, second in chosen]
    others = round(statistics.fmean(others for others, _ in chosen), 2) if known else None
    return Timing(statistics.median(seconds), min(seconds), max(seconds), others)


def _clocks() -> tuple[float, float, float]:
    """Seconds by the wall, of this process on all its threads, and of all processes (NaN where no one tells)."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        busy = sum(int(fields[i]) for i in BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        busy = math.nan
    return time.perf_counter(), time.process_time(), busy
