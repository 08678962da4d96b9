"""`bench ops`: every backend of an op has a row, and the counts of a row are right."""

import pytest
import torch

from linnet.bench import ops
from linnet.bench.measure import Effort, measure_bench
from linnet.bench.memory import peak_memory_server
from linnet.bench.ops import D, H, ops_bench, ops_flops, prepare_ops
from linnet.ops import linear_attention
from linnet.ops.backend import NAMES

EFFORT = Effort(rounds=1, least=0.0, limit=5.0, yardstick=16)


def names(bench):
    return list(dict.fromkeys(job["case"] for group in bench.groups for job in group.jobs))


def test_declared_ops_are_measured_and_the_rest_is_explained():
    bench = ops_bench(quick=True, peers=False)
    skipped = {entry["case"]: entry["reason"] for entry in bench.skipped}
    for op in ops.OPS:
        for backend in NAMES:
            assert (f"{op}, {backend}" in names(bench)) != (f"{op}, {backend}" in skipped)
        assert {f"{op}, reference", f"{op}, torch"} <= set(names(bench))
    assert all("does not implement" in reason or reason for reason in skipped.values())


def test_a_new_backend_needs_no_edit_here(monkeypatch):
    def op(q, k, v, causal, backend):
        return linear_attention(q, k, v, causal, backend="torch" if backend == "cpu" else backend)

    monkeypatch.setitem(ops.OPS, "linear_attention", (op, "bare product", "linear"))
    assert "linear_attention, cpu" in names(ops_bench(quick=True, peers=False, only="linear_attention"))


def test_groups_compare_like_with_like():
    for group in ops_bench(quick=True).groups:
        assert len({(job["form"], job["pass"], job["batch"], job["tokens"]) for job in group.jobs}) == 1
        assert all(job["includes"] for job in group.jobs)


def test_lengths_and_names_can_be_chosen():
    bench = ops_bench(lengths=[32, 96], quick=True, only="block")
    assert {job["tokens"] for group in bench.groups for job in group.jobs} == {32, 96}
    assert all(name.startswith("block_attention") for name in names(bench))


def test_useful_work():
    assert ops_flops("linear", causal=False, N=10) == 4 * D * D
    assert ops_flops("linear", causal=True, N=10) == 4 * D * D + 2 * 64 * D
    assert ops_flops("softmax", causal=True, N=10) == 2 * 10 * D
    assert ops_flops("linear+block", causal=False, N=10) == 4 * D * D + 4 * 64 * D
    assert ops_flops("", causal=True, N=10) == 0


@pytest.mark.parametrize("which", ["forward", "forward+backward"])
def test_every_case_runs_and_leaves_no_gradients(which):
    bench = ops_bench(lengths=[64], quick=True)
    result = measure_bench(bench._replace(groups=[group._replace(memory=False) for group in bench.groups]), EFFORT)
    assert not [row["case"] for row in result["rows"] if "reason" in row]
    job = next(job for group in bench.groups for job in group.jobs if (job["case"], job["pass"]) == ("norm", which))
    call = prepare_ops(job)
    call()
    assert all(x.grad is None for x in call.args if isinstance(x, torch.Tensor))
    assert all(x.grad is None for x in call.args[0].parameters())


def test_a_peak_is_at_least_the_floor():
    job = {"case": "linear_attention, torch", "form": "causal", "pass": "forward+backward", "batch": 1, "tokens": 4096}
    floor = 4 * 4 * H * D * 4096  # o and three gradients
    with peak_memory_server("linnet.bench.ops") as peak:
        assert floor <= peak(job) < 1.5 * floor
