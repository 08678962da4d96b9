"""Speed and memory of the arena's models: a small real measurement."""

import pytest
import torch

from linnet.bench import arena
from linnet.bench.memory import peak_server
from linnet.models.backbone import Model


def test_a_measurement(monkeypatch):
    monkeypatch.setattr(arena, "BATCH", 1)
    systems = {"T2": "transnormer_t2_lra_small", "vanilla": "vanilla_lra_small"}
    shown = []
    found = arena.measure_arena(systems, 128, rounds=1, progress=lambda *done: shown.append(done))
    assert shown == [(done, 6) for done in range(1, 7)]
    assert [row["row"] for row in found["rows"]] == ["T2", "vanilla"]
    for row in found["rows"]:
        assert row["inference"] > 0
        assert row["training"] > 0
    assert found["tokens"] == 128


def test_a_step_of_training_updates_every_weight_and_one_of_inference_drops_nothing(monkeypatch):
    built = []
    monkeypatch.setattr(arena, "Model", lambda config: built.append(Model(config)) or built[-1])
    train, infer = arena.steps("vanilla_lra_small", 64, batch=2)
    (model,) = built
    before = [parameter.detach().clone() for parameter in model.parameters()]
    infer()
    assert not model.training
    assert all(map(torch.equal, before, model.parameters()))
    train()
    assert model.training
    assert not any(map(torch.equal, before, model.parameters()))


def test_peak_memory_is_that_of_the_step_and_the_same_again():
    """Every block of a step is given back when it is freed, so the peak does not depend on what was there before."""
    with peak_server("linnet.bench.arena") as peak:
        jobs = [{"model": "vanilla_lra", "tokens": tokens, "batch": 1} for tokens in (2048, 4096, 2048)]
        first, longer, again = map(peak, jobs)
    assert again == pytest.approx(first, rel=0.03)
    assert longer / first == pytest.approx(2, rel=0.15)
