"""Timing of functions on a shared machine: calls take turns, and samples disturbed by other programs do not count."""

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BUSY = (0, 1, 2, 5, 6, 7)  # the fields of /proc/stat that are work: all except idle and iowait


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median, minimum, maximum; `others` is the number of cores that other programs kept busy."""

    seconds: float
    low: float
    high: float
    others: float | None  # None if the system does not report it


def time_calls(
    calls: Mapping[str, Callable[[], object]],
    rounds: int = 5,
    least: float = 0.1,
    progress: Callable[[], None] = lambda: None,
    processor: bool = False,
) -> dict[str, Timing]:
    """Time each call once per round, in random order, so that a temporary slowdown affects all calls alike.

    A sample is one call, or as many as fill `least` seconds; the first call of each function is a warm-up. Only the
    quieter half of the samples counts: those during which other programs used the processor least. `processor` takes
    the seconds of this process on its cores, which do not pass while others run, instead of those of the clock.
    """
    expected = {name: time_warm_up(call) for name, call in calls.items()}
    return time_known_calls(calls, expected, rounds, least, progress=progress, processor=processor)


def time_warm_up(call: Callable[[], object]) -> float:
    """Seconds of a call after its first use; a call that takes half a second or more is made only once."""
    for _ in range(2):
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        if seconds >= 0.5:
            break
    return seconds


def time_known_calls(
    calls: Mapping[str, Callable[[], object]],
    expected: Mapping[str, float],
    rounds: int,
    least: float,
    slow: float = math.inf,
    progress: Callable[[], None] = lambda: None,
    processor: bool = False,
) -> dict[str, Timing]:
    """`time_calls` for calls whose time is roughly known; a call slower than `slow` takes part in only 3 rounds."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    order, chance = list(calls), random.Random(0)
    for turn in range(rounds):
        chance.shuffle(order)
        for name in order:
            if turn < 3 or expected[name] <= slow:
                repeats = max(1, round(least / max(expected[name], 1e-7)))
                samples[name].append(_sample(calls[name], repeats, processor))
            progress()
    return {name: _quieter_half(found) for name, found in samples.items()}


def _sample(call: Callable[[], object], repeats: int, processor: bool) -> tuple[float, float]:
    """(cores that other programs used, seconds per call)."""
    before = _clocks()
    for _ in range(repeats):
        call()
    wall, own, busy = (now - then for now, then in zip(_clocks(), before, strict=True))
    others = (busy - own) / wall  # counted in hundredths of a second: too coarse for short samples
    return others if math.isnan(others) else min(max(others, 0.0), os.cpu_count() or 1), (
        own if processor else wall
    ) / repeats


def _quieter_half(samples: Sequence[tuple[float, float]]) -> Timing:
    """The timing from the quieter half of the samples, or from all if the load of other programs is unknown."""
    known = not any(math.isnan(others) for others, _ in samples)
    chosen = sorted(samples)[: len(samples) // 2 + 1] if known else samples
    seconds = [second for _, second in chosen]
    others = round(statistics.fmean(others for others, _ in chosen), 2) if known else None
    return Timing(statistics.median(seconds), min(seconds), max(seconds), others)


def _clocks() -> tuple[float, float, float]:
    """Wall seconds, CPU seconds of this process, and CPU seconds of all processes (NaN if unknown)."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        busy = sum(int(fields[i]) for i in BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        busy = math.nan
    return time.perf_counter(), time.process_time(), busy
