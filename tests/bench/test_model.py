"""`bench model`: every mechanism is measured, in the declared shape."""

import linnet
from linnet.bench import model
from linnet.bench.measure import Effort, measure_bench
from linnet.bench.model import model_bench, model_bench_config, prepare_model_bench


def test_every_mechanism_is_measured_and_runs():
    bench = model_bench(quick=True)
    jobs = [job for group in bench.groups for job in group.jobs]
    wanted = {name for name in linnet.list_attention() if linnet.describe_attention(name)["bidirectional"]}
    assert {job["case"] for job in jobs if job["table"] == "layer"} == wanted
    assert {job["case"] for job in jobs if job["table"] == "model"} == wanted | {"transnormer_t1", "transnormer_t2"}
    bench = bench._replace(groups=[group._replace(memory=False) for group in bench.groups])
    result = measure_bench(bench, Effort(rounds=1, least=0.0, limit=60.0, yardstick=16))
    assert not {row["case"]: row["reason"] for row in result["rows"] if "reason" in row}


def test_the_shape_is_that_of_the_paper():
    for name, layers, ffn in (("transnormer_t2", ("diag", "norm"), 85), ("softmax", ("softmax", "softmax"), 128)):
        shape = model_bench_config(name, 1024)
        assert (shape.layers, shape.width, shape.heads, shape.ffn_width) == (layers, 64, 2, ffn)
        assert (shape.causal, shape.dropout, shape.max_length) == (False, 0.0, 1024)
    assert all(options.get("dropout", 0.0) == 0.0 for options in model_bench_config("softmax", 64).options.values())


def test_the_full_size_has_the_papers_lengths_and_the_pair_that_is_held_together():
    jobs = [job for group in model_bench().groups for job in group.jobs]
    assert {job["tokens"] for job in jobs if job["table"] == "model"} == {1024, 2048, 3072, 4096, 5120}
    assert {job["tokens"] for job in jobs if job["table"] == "layer"} == {512, 1024, 2048, 4096, 8192, 16384}
    assert {job["case"] for job in jobs if job["batch"] == 32} == {"softmax", "transnormer_t2"}


def test_a_step_is_that_of_the_lra_model(monkeypatch):
    asked = []
    monkeypatch.setattr(model, "lra_bench_step", lambda *words: asked.append(words))
    for which in ("train", "inference"):
        prepare_model_bench(
            {"table": "model", "case": "norm", "pass": which, "batch": 2, "tokens": 16, "compiled": False}
        )
    assert asked == [(model_bench_config("norm", 16), kind, 16, 2, False) for kind in ("training", "inference")]
