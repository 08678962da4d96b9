"""The engine of every benchmark: it measures groups of jobs that are compared with each other, one row per job.

A job is JSON that names a call and its size. The jobs of a group take turns with each other and with the machine's
limits (a matrix product, a copy). Each memory peak is measured in a separate process. A call may carry `facts` that go
into its row. Results are written to disk after each group, so an interrupted benchmark can continue later.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from linnet.bench.machine import describe_machine, measure_machine_limits, spare_machine_memory
from linnet.bench.memory import Job, peak_memory_server
from linnet.bench.timing import time_known_calls, time_warm_up
from linnet.errors import InputError, LinnetError
from linnet.storage import read_json_file, write_json_file
from linnet.testing.peers import MissingPeerError

FORMAT = "linnet-bench-1"
SLOW = 0.25  # a call that takes this many seconds gets only 3 samples
SERIES = ("table", "case", "form", "pass")  # what is the same while batch and tokens change
Row = dict[str, Any]
Work = Callable[[Job], Callable[[], object]]


class Effort(NamedTuple):
    """How thoroughly to measure: rounds, seconds per sample, the longest call in seconds, the width of the yardsticks.

    A call of another library is left out from half that time on.
    """

    rounds: int
    least: float
    limit: float
    yardstick: int


class Group(NamedTuple):
    """Jobs that are compared with each other; with `memory`, their peaks are measured too."""

    jobs: Sequence[Job]
    memory: bool = False


class Bench(NamedTuple):
    """A benchmark: `module` serves the peaks of its jobs, `skipped` lists what cannot run and why.

    Jobs are prepared and called inside the context `around`, whose own cost is not measured.
    """

    name: str
    module: str
    prepare: Work
    groups: Sequence[Group]
    skipped: Sequence[dict[str, str]]
    settings: dict[str, Any]
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext


def measure_bench(
    bench: Bench,
    effort: Effort,
    partial: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure all groups and save them to `partial`; after Ctrl-C return the results so far, with `complete` False."""
    start = time.perf_counter()
    result: dict[str, Any] = {
        "format": FORMAT,
        "bench": bench.name,
        "settings": {**bench.settings, **effort._asdict()},
        "environment": describe_machine(),
        "skipped": list(bench.skipped),
        "rows": [],
        "seconds": 0.0,
        "complete": False,
    }
    if partial is not None and partial.exists():
        result = _continued(result, partial)
    before, total = result["seconds"], sum(len(group.jobs) for group in bench.groups)
    with contextlib.suppress(KeyboardInterrupt):
        progress(0, total)
        for _ in _measured(bench, effort, result["rows"], progress, total):
            result["seconds"] = round(before + time.perf_counter() - start, 1)
            if partial is not None:
                write_json_file(partial, result)
        result["complete"] = True
    return result


def _continued(fresh: dict[str, Any], partial: Path) -> dict[str, Any]:
    """The results of an interrupted run, if it had the same settings and environment."""
    old = read_json_file(partial)
    keys = ("format", "bench", "settings", "environment")
    if not isinstance(old, dict) or any(old.get(key) != fresh[key] for key in keys):
        raise InputError(f"{partial} was started with other settings or on another machine: delete it to start over")
    return old


def _measured(
    bench: Bench, effort: Effort, rows: list[Row], progress: Callable[[int, int], None], total: int
) -> Iterator[None]:
    """Add rows group by group; existing rows stay."""
    with contextlib.ExitStack() as stack, warnings.catch_warnings(), bench.around():
        warnings.simplefilter("ignore")  # a library's warnings are not about this measurement
        peak = None
        if any(group.memory for group in bench.groups):
            longest = math.ceil(3 * effort.limit) + 5
            peak = stack.enter_context(peak_memory_server(bench.module, spare_machine_memory(), longest))
        for group in bench.groups:
            known = [_key(row) for row in rows]
            jobs = [job for job in group.jobs if _key(job) not in known]
            done = len(rows)
            if jobs:
                found = _measure(jobs, bench.prepare, peak if group.memory else None, effort, rows)
                rows += found
                yield
            progress(done + len(jobs), total)


def _measure(
    jobs: Sequence[Job], prepare: Work, peak: Callable[[Job], int] | None, effort: Effort, rows: Sequence[Row]
) -> list[Row]:
    """The rows of one group, in its order."""
    found: dict[str, Row] = {}
    calls: dict[str, Callable[[], object]] = {}
    expected: dict[str, float] = {}
    for job in jobs:
        key, row = _key(job), dict(job)
        found[key] = row
        reason = _hopeless(job, rows, effort.limit)
        try:
            if reason is None and peak is not None:
                row["memory"] = peak(job)
            if reason is None:
                call = prepare(job)
                expected[key] = time_warm_up(call)
                if expected[key] > effort.limit:  # the machine may have been busy: try again
                    expected[key] = time_warm_up(call)
                if expected[key] > effort.limit:
                    reason = f"takes more than {effort.limit:g} seconds"
                else:
                    calls[key] = call
                row.update(getattr(call, "facts", {}))
        except Exception as error:  # noqa: BLE001  any error is this job's result, and the others continue
            reason = _told(error)
        if reason is not None:
            row["reason"] = reason
    rulers = measure_machine_limits(effort.yardstick)
    for name, ruler in rulers.items() if calls else ():
        calls[name], expected[name] = ruler.call, time_warm_up(ruler.call)
    timings = time_known_calls(calls, expected, effort.rounds, effort.least, slow=SLOW)
    rates = {name: rulers[name].amount / timings[name].seconds for name in rulers if name in timings}
    for key, row in found.items():
        if key in timings:
            values = {name: value for name, value in asdict(timings[key]).items() if value is not None}
            row.update({name: _rounded(value) for name, value in {**values, **rates}.items()})
    return list(found.values())


def _hopeless(job: Job, rows: Sequence[Row], limit: float) -> str | None:
    """Why a job is skipped, or None: a smaller one of its series failed, or it would take too long."""
    limit = limit / 2 if job.get("group") == "peer" else limit
    series = [row for row in rows if all(row.get(key) == job.get(key) for key in SERIES)]
    if not series:
        return None
    last = series[-1]
    if "reason" in last:
        smaller = last["batch"] <= job["batch"] and last["tokens"] <= job["tokens"]
        return last["reason"] if smaller else None
    same = [row for row in series[:-1] if row["batch"] == last["batch"] and "seconds" in row]
    growth = 1.0
    if same and same[-1]["tokens"] < last["tokens"]:
        ratio = last["seconds"] / same[-1]["seconds"]
        growth = max(0.0, math.log(ratio) / math.log(last["tokens"] / same[-1]["tokens"]))
    soon = last["seconds"] * job["batch"] / last["batch"] * (job["tokens"] / last["tokens"]) ** growth
    return f"would take more than {limit:g} seconds" if soon > limit else None


def _key(job: Job) -> str:
    return " ".join(f"{key}={job.get(key)}" for key in (*SERIES, "batch", "tokens"))


def _told(error: Exception) -> str:
    """An error as one line."""
    line = " ".join(str(error).split())[:200]
    return line if isinstance(error, LinnetError | MissingPeerError) else f"breaks: {type(error).__name__}: {line}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
