"""A step of a Long Range Arena model: a small real measurement."""

import pytest
import torch

from linnet.bench import lra
from linnet.bench.memory import peak_memory_server
from linnet.models.backbone import Model
from linnet.models.presets import preset


def test_a_measurement(monkeypatch):
    monkeypatch.setattr(lra, "BATCH", 1)
    systems = {"T2": "transnormer_t2_lra_small", "vanilla": "vanilla_lra_small"}
    shown = []
    found = lra.measure_lra_speed(systems, 128, rounds=1, progress=lambda *done: shown.append(done))
    assert shown == [(done, 6) for done in range(1, 7)]
    assert [row["row"] for row in found["rows"]] == ["T2", "vanilla"]
    for row in found["rows"]:
        assert row["inference"] > 0
        assert row["training"] > 0
    assert found["tokens"] == 128


def test_a_step_of_training_updates_every_weight_and_one_of_inference_drops_nothing(monkeypatch):
    built = []
    monkeypatch.setattr(lra, "Model", lambda config: built.append(Model(config)) or built[-1])
    config = preset("vanilla_lra_small", max_length=64)
    for which in ("inference", "training"):
        step = lra.lra_bench_step(config, which, 64, batch=2)
        model = built.pop()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        step()
        assert model.training == (which == "training")
        same = list(map(torch.equal, before, model.parameters()))
        assert all(same) if which == "inference" else not any(same)


def test_peak_memory_is_that_of_the_step_and_the_same_again():
    """Freed blocks are returned to the system at once, so the peak does not depend on earlier allocations."""
    with peak_memory_server("linnet.bench.lra") as peak:
        jobs = [{"model": "vanilla_lra", "tokens": tokens, "batch": 1} for tokens in (2048, 4096, 2048)]
        first, longer, again = map(peak, jobs)
    assert again == pytest.approx(first, rel=0.03)
    assert longer / first == pytest.approx(2, rel=0.15)
