"""`bench profile`: where the time of a call goes, for calls whose speed must meet a bound."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.profiler import ProfilerActivity, profile

from linnet.bench import model, ops
from linnet.bench.measure import Bench, Group
from linnet.bench.memory import Job

SMALLEST = 0.02  # parts with a smaller share of the time are added up
WARM = 5  # calls before the profiled one
ATTENTION = {"linear_attention, cpu": "causal", "lln": "bidirectional", "lln_diag": "bidirectional"}


def profile_bench(quick: bool = False, only: str = "") -> Bench:
    """The plan: attention at 8,192 tokens, and a training step of the LRA model."""
    sizes = (1, 64) if quick else (4, 8192)
    attention = [ops.ops_job(case, "forward+backward", *sizes) for case in _cases()]
    systems = ("transnormer_t2", "softmax")
    steps = [
        model.model_bench_job("model", name, "train", *((1, 64) if quick else model.PAPER_SIZE)) for name in systems
    ]
    groups = [Group([job for job in jobs if only in job["case"]]) for jobs in (attention, steps)]
    settings = {"heads": ops.H, "head_dim": ops.D, "type": "float32", "only": only}
    return Bench("profile", "linnet.bench.profile", _prepare, groups, [], settings)


def _cases() -> list[ops.Case]:
    return [case for case in ops.ops_cases(peers=False)[0] if ATTENTION.get(case.name) == case.form]


def _prepare(job: Job) -> Callable[[], object]:
    """The call for a job, with the parts of its time as `facts`."""
    prepare = ops.prepare_ops if job["table"] == "ops" else model.prepare_model_bench
    call = partial(_call, prepare({"compiled": False, **job}))
    for _ in range(WARM):
        call()
    call.facts = {"parts": profile_parts(call)}  # type: ignore[attr-defined]
    return call


def _call(run: Callable[[], object]) -> None:
    run()


def profile_parts(call: Callable[[], object]) -> list[dict[str, Any]]:
    """Seconds of each operator without those that it calls, longest first; small ones are summed up."""
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        call()
    found = [(event.key, event.self_cpu_time_total * 1e-6, event.count) for event in watched.key_averages()]
    whole = sum(seconds for _, seconds, _ in found)
    named = sorted((part for part in found if part[1] >= SMALLEST * whole), key=lambda part: -part[1])
    rest = whole - sum(seconds for _, seconds, _ in named)
    lines = [*named, ("all others", rest, sum(count for *_, count in found) - sum(count for *_, count in named))]
    return [{"name": name, "seconds": float(f"{seconds:.4g}"), "calls": count} for name, seconds, count in lines]
