"""`bench ops`: every backend of every op, the same in plain torch, and other libraries, like for like."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linnet.attention.base import create_attention
from linnet.bench import forms
from linnet.bench.measure import Bench, Group
from linnet.bench.memory import Job, serve_memory_jobs
from linnet.errors import LinnetError
from linnet.ops import block_attention, exp_attention, linear_attention
from linnet.ops.backend import NAMES
from linnet.testing.peers import PEERS

H, D = 8, 64
BLOCK = 64
PASSES = ("forward", "forward+backward")
FORMS = {"causal": True, "bidirectional": False}
SIZES = ((4, (512, 1024, 2048, 4096, 8192)), (1, (4096, 16384, 65536)))  # batch, lengths
QUICK = ((1, (64, 128)),)

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
OPS: dict[str, tuple[Callable[..., Tensor], str, str]] = {
    "linear_attention": (linear_attention, "bare product", "linear"),
    "exp_attention": (exp_attention, "exponential features, denominator", "linear"),
    "block_attention": (partial(block_attention, block=BLOCK), f"softmax in blocks of {BLOCK}", "block"),
}
CORES = {
    "norm": ("features, rotation, norm", "linear"),
    "lln": ("deviations, exponential features, denominator", "linear"),
    "lln_diag": ("lln, and softmax in blocks", "linear+block"),
}


class Case(NamedTuple):
    """One attention in one form; `build` makes it for a number of tokens."""

    name: str
    group: str  # "op", "mechanism", "plain" or "peer"
    includes: str
    form: str
    work: str  # how to count its operations: "linear", "block", "softmax", or "" if unknown
    build: Callable[[int], Attention]


def ops_cases(peers: bool = True) -> tuple[list[Case], list[dict[str, str]]]:
    """All cases that can run here, and the others with the reason."""
    found, skipped = [], []
    for case in [*_ours(), *_plain(), *(_peers() if peers else ())]:
        try:
            q, k, v = torch.randn(3, 1, H, 128, D).unbind(0)
            if case.group == "op":  # an op raises at once if it cannot run
                case.build(128)(q, k, v)
            elif case.group == "peer":
                case.build(128)
            found.append(case)
        except Exception as error:  # a library may fail in any way; linnet's ops raise LinnetError
            if case.group == "op" and not isinstance(error, LinnetError):
                raise
            skipped.append({"case": case.name, "form": case.form, "reason": " ".join(str(error).split())[:200]})
    return found, skipped


def _ours() -> list[Case]:
    ops = [
        Case(f"{name}, {backend}", "op", includes, form, work, partial(_op, op, causal, backend))
        for name, (op, includes, work) in OPS.items()
        for backend in NAMES
        for form, causal in FORMS.items()
    ]
    cores = [
        Case(name, "mechanism", includes, form, work, partial(_core, name, causal))
        for name, (includes, work) in CORES.items()
        for form, causal in FORMS.items()
    ]
    return ops + cores


def _op(op: Callable[..., Tensor], causal: bool, backend: str, tokens: int) -> Attention:
    return partial(op, causal=causal, backend=backend)


def _core(name: str, causal: bool, tokens: int) -> Attention:
    return create_attention(name, heads=H, head_dim=D, causal=causal)


def _plain() -> list[Case]:
    def case(name: str, includes: str, form: str, work: str, fn: Attention) -> Case:
        return Case(name, "plain", includes, form, work, lambda tokens: fn)

    lln, mixed = "deviations, exponential features, denominator", "lln, and softmax in blocks"
    return [
        case("torch SDPA", "softmax over all keys", "causal", "softmax", forms.torch_causal_softmax_form),
        case("torch SDPA", "softmax over all keys", "bidirectional", "softmax", forms.torch_softmax_form),
        case("batched chunks", "bare product", "causal", "linear", forms.chunked_torch_form),
        case("lln as released", lln, "bidirectional", "linear", forms.released_lln_form),
        case("lln_diag as released", mixed, "bidirectional", "linear+block", forms.released_lln_diag_form),
    ]


def _peers() -> list[Case]:
    return [
        Case(
            *(peer.name, "peer", peer.includes, "causal" if peer.causal else "bidirectional"),
            *("linear" if peer.linear else "", partial(peer.load, H, D)),
        )
        for peer in PEERS
    ]


def ops_flops(work: str, causal: bool, N: int) -> int:
    """Useful floating-point operations per token and head, forward; a causal chunk has 64 tokens."""
    each = {
        "linear": 4 * D * D + (2 * BLOCK * D if causal else 0),
        "block": (2 if causal else 4) * BLOCK * D,
        "softmax": (2 if causal else 4) * N * D,
    }
    return sum(each[part] for part in work.split("+") if part)


def ops_bench(lengths: Sequence[int] | None = None, quick: bool = False, peers: bool = True, only: str = "") -> Bench:
    """The plan: `lengths` replace those of every batch; `only` keeps the cases whose name contains it."""
    found, skipped = ops_cases(peers)
    found = [case for case in found if only in case.name]
    skipped = [case for case in skipped if only in case["case"]]
    sizes = [(batch, tuple(lengths or known)) for batch, known in (QUICK if quick else SIZES)]
    groups = [
        Group([ops_job(case, which, batch, N) for case in found if case.form == form], memory=True)
        for batch, known in sizes
        for N in known
        for form in FORMS
        for which in PASSES
    ]
    settings = {"heads": H, "head_dim": D, "type": "float32", "sizes": [[batch, list(known)] for batch, known in sizes]}
    return Bench("ops", "linnet.bench.ops", prepare_ops, groups, skipped, {**settings, "peers": peers, "only": only})


def ops_job(case: Case, which: str, batch: int, N: int) -> dict[str, Any]:
    """A job with its bytes and operations.

    Forward moves q, k, v and o. Backward reads q, k, v and the gradient of o, writes three gradients, and does twice
    the work.
    """
    both = which == PASSES[1]
    job: dict[str, Any] = {"table": "ops", "case": case.name, "group": case.group, "includes": case.includes}
    job |= {"form": case.form, "pass": which, "batch": batch, "tokens": N}
    job["bytes"] = (11 if both else 4) * 4 * H * D * batch * N
    each = ops_flops(case.work, FORMS[case.form], N)
    return {**job, "flops": each * H * batch * N * (3 if both else 1)} if each else job


@lru_cache(maxsize=1)
def _inputs(batch: int, tokens: int) -> tuple[Tensor, ...]:
    """q, k, v and an output gradient; all jobs of a group share these tensors."""
    torch.manual_seed(0)
    return tuple(torch.randn(batch, H, tokens, D) for _ in range(4))


@lru_cache(maxsize=1)
def _known() -> dict[tuple[str, str], Case]:
    return {(case.name, case.form): case for case in [*_ours(), *_plain(), *_peers()]}


def prepare_ops(job: Job) -> Callable[[], object]:
    """The call for a job."""
    q, k, v, toward = _inputs(job["batch"], job["tokens"])
    attention = _known()[job["case"], job["form"]].build(job["tokens"])
    if job["pass"] == "forward":
        return partial(_forward, attention, q, k, v)
    return partial(_forward_backward, attention, q, k, v, toward)


def _forward(attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> None:
    with torch.no_grad():
        attention(q, k, v)


def _forward_backward(attention: Attention, q: Tensor, k: Tensor, v: Tensor, toward: Tensor) -> None:
    """Compute all gradients and drop them."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    attention(*leaves).backward(toward)
    if isinstance(attention, torch.nn.Module):
        attention.zero_grad(set_to_none=True)


def _warm_up(job: Job) -> None:
    """Do the same work on a few tokens."""
    prepare_ops({**job, "tokens": 64, "batch": 1})()


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve_memory_jobs(_warm_up, prepare_ops)
