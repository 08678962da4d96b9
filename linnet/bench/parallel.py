"""`bench parallel`: one sequence over one and two processes of one core each: time, bytes and memory of a rank.

The same two processes run every job, in turns: where a job has one rank, the second process sleeps. A step is forward,
backward and the sum of gradients. Memory is measured in other processes, which return freed memory at once.
"""

import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from linnet.bench.machine import describe_machine, keep_machine_memory
from linnet.bench.memory import ALLOCATOR
from linnet.distributed import reduce_sequence_gradients, sequence_parallel_model
from linnet.errors import LinnetError
from linnet.models.backbone import Model, count_backbone_parameters
from linnet.models.presets import preset

FORMAT = "linnet-bench-parallel-1"
CASES = {"norm": ("norm", "norm"), "lln": ("lln", "lln"), "transnormer_t2": ("diag", "norm")}
WIDTH, HEADS, FFN, VOCABULARY = 256, 4, 512, 256
TOKENS = (1024, 2048, 4096)  # of one rank
MESSAGES = (2**12, 2**16, 2**20, 2**22)  # bytes that each rank sends to the other
WORLDS = (1, 2)
ROUNDS = 5

Job = Mapping[str, Any]
Answer = dict[str, Any]


def measure_parallel_bench(
    cases: Sequence[str] = tuple(CASES),
    tokens: Sequence[int] = TOKENS,
    rounds: int = ROUNDS,
    progress: Callable[[int, int], None] = lambda done, total: None,
    keep: Callable[[dict[str, Any]], None] = lambda found: None,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Steps of every case at every number of tokens per rank and of ranks, as JSON.

    `keep` gets the result after each case. The cases of `before`, an earlier result, are not measured again.
    """
    model = {"layers": 2, "width": WIDTH, "heads": HEADS, "ffn_width": FFN, "vocabulary": VOCABULARY}
    settings = {"model": model, "batch": 1, "type": "float32", "tokens": list(tokens), "rounds": rounds}
    where = {**describe_machine(), "threads": 1}
    found: dict[str, Any] = {"format": FORMAT, "settings": settings, "environment": where, "load": [], "rows": []}
    if before is not None and all(before.get(key) == found[key] for key in ("format", "settings", "environment")):
        found |= {key: before[key] for key in ("load", "rows", "messages") if key in before}
    known = {row["case"] for row in found["rows"]}
    left = [case for case in cases if case not in known]
    total = len(left) * len(tokens) * len(WORLDS) * (rounds + 2) + len(MESSAGES) * rounds
    done = 0

    def tell() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    if left or "messages" not in found:
        with _ranks({}) as timed, _ranks(ALLOCATOR) as weighed:
            found["load"] += [round(os.getloadavg()[0], 1)]
            found.setdefault("messages", _messages(timed, rounds, tell))
            for case in left:
                jobs = [{"case": case, "tokens": n, "ranks": world} for n in tokens for world in WORLDS]
                found["rows"] += _rows(jobs, timed, weighed, rounds, tell)
                found["load"] += [round(os.getloadavg()[0], 1)]
                keep(found)
    return found


Ask = Callable[[Job], list[Answer]]


def _rows(jobs: Sequence[Job], timed: Ask, weighed: Ask, rounds: int, tell: Callable[[], None]) -> list[dict[str, Any]]:
    """Measure the jobs in turns, in random order: each is a warm-up, `rounds` steps and a step for its memory."""
    order, chance = list(range(len(jobs))), random.Random(0)
    samples: list[list[list[Answer]]] = [[] for _ in jobs]
    peaks: list[list[int | None]] = []
    for job in jobs:
        timed({**job, "do": "step"})
        peaks.append([answer["memory"] for answer in weighed({**job, "do": "memory"})])
        tell()
        tell()
    for _ in range(rounds):
        chance.shuffle(order)
        for i in order:
            samples[i].append(timed({**jobs[i], "do": "step"}))
            tell()
    rows = []
    for job, answers, peak in zip(jobs, samples, peaks, strict=True):
        walls = [max(rank["seconds"] for rank in turn) for turn in answers]  # a step ends with its slowest rank
        works = [max(rank["cpu"] for rank in turn) for turn in answers]
        sent = {key: answers[0][0][key] for key in ("forward", "backward", "masks", "calls", "gradients")}
        rows.append(
            {
                **job, **sent, "seconds": statistics.median(walls), "low": min(walls), "high": max(walls),
                "cpu": statistics.median(works), "memory": None if None in peak else max(x or 0 for x in peak),
            }
        )  # fmt: skip
    return rows


def _messages(timed: Ask, rounds: int, tell: Callable[[], None]) -> list[dict[str, Any]]:
    """Seconds of one gather between two ranks, by size: the least of many, which other programs disturb least."""
    found = []
    for size in MESSAGES:
        seconds = []
        for _ in range(rounds):
            seconds.append(max(answer["seconds"] for answer in timed({"do": "gather", "ranks": 2, "bytes": size})))
            tell()
        found.append({"bytes": size, "seconds": min(seconds), "median": statistics.median(seconds)})
    return found


@contextlib.contextmanager
def _ranks(environment: Mapping[str, str]) -> Iterator[Ask]:
    """A function that gives a job to its ranks, and returns what each answers."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        program = [sys.executable, "-P", "-m", "linnet.bench.parallel", str(Path(folder) / "meeting")]
        pipe, names = subprocess.PIPE, {**os.environ, **environment, "OMP_NUM_THREADS": "1"}
        servers = [
            subprocess.Popen([*program, str(rank)], stdin=pipe, stdout=pipe, text=True, env=names)
            for rank in range(max(WORLDS))
        ]
        for server in servers:
            stack.enter_context(server)  # it closes the pipes and waits
            stack.callback(server.kill)

        def ask(job: Job) -> list[Answer]:
            asked = servers[: job["ranks"]]
            for server in asked:
                assert server.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    server.stdin.write(json.dumps(job) + "\n")
                    server.stdin.flush()
            lines = [server.stdout.readline() if server.stdout is not None else "" for server in asked]
            if not all(lines):
                raise LinnetError("a process of the benchmark has died")
            return [json.loads(line) for line in lines]

        yield ask


def serve_parallel_rank(meeting: str, rank: int) -> None:
    """Answer the jobs on standard input, as one rank on a core of its own."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) >= max(WORLDS):
        os.sched_setaffinity(0, {cores[rank]})
    if not os.environ.keys() & ALLOCATOR.keys():
        keep_machine_memory()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=max(WORLDS))
    groups = {world: dist.new_group(list(range(world))) for world in WORLDS}
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(_answer(job, groups[job["ranks"]])), flush=True)


def _answer(job: Job, group: dist.ProcessGroup) -> Answer:
    """One measurement on one rank."""
    if job["do"] == "gather":
        return _gather(job, group)
    step = prepare_parallel_step(job, group)
    if job["do"] == "memory":
        prepare_parallel_step({**job, "tokens": 64}, group)()  # what is loaded on first use
        before = _status("VmRSS") if _forget_peak() else None
        step()
        peak = _status("VmHWM")
        return {"memory": None if before is None or peak is None else peak - before}
    dist.barrier(group)
    start, work = time.perf_counter(), _cpu()
    sent = step()
    return {"seconds": time.perf_counter() - start, "cpu": _cpu() - work, **sent}


def _gather(job: Job, group: dist.ProcessGroup) -> Answer:
    """The seconds of one gather, over some in a row."""
    x, times = torch.ones(job["bytes"] // 4), 5
    out = list(torch.empty(dist.get_world_size(group), x.numel()).unbind(0))
    for _ in range(2):
        dist.all_gather(out, x, group=group)
    start = time.perf_counter()
    for _ in range(times):
        dist.all_gather(out, x, group=group)
    return {"seconds": (time.perf_counter() - start) / times}


def prepare_parallel_step(job: Job, group: dist.ProcessGroup) -> Callable[[], Answer]:
    """A training step of this rank's tokens, which returns the bytes that it received."""
    torch.manual_seed(0)
    case, N, size = job["case"], job["tokens"], dist.get_world_size(group)
    config = preset(
        f"{case}_lm_small", layers=list(CASES[case]), width=WIDTH, heads=HEADS, ffn_width=FFN, vocab_size=VOCABULARY,
        dropout=0.0,
    )  # fmt: skip
    model = sequence_parallel_model(Model(config), group)
    assert model.ranks is not None
    traffic = getattr(model.ranks, "traffic")  # noqa: B009  the protocol of the ops has no traffic
    ids = torch.randint(VOCABULARY, (1, N))

    def step() -> Answer:
        (cross_entropy(model(ids)[0], ids[0], reduction="sum") / (N * size)).backward()
        reduce_sequence_gradients(model, group)
        gradients = count_backbone_parameters(model) * 4 * 2 * (size - 1) // size  # of a ring
        sent = {key: getattr(traffic, key) for key in ("forward", "backward", "masks", "calls")}
        return {**sent, "gradients": gradients}

    return step


def _cpu() -> float:
    """Seconds of processor time of this process and its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _forget_peak() -> bool:
    """Let the peak memory of this process start anew; False where the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(field: str) -> int | None:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None


if __name__ == "__main__":
    serve_parallel_rank(sys.argv[1], int(sys.argv[2]))
