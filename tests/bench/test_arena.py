"""Speed and memory of the arena's models: a small real measurement."""

import pytest

from linnet.bench import arena
from linnet.bench.memory import peak_server


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


def test_peak_memory_is_that_of_the_step_and_the_same_again():
    """Every block of a step is given back when it is freed, so the peak does not depend on what was there before."""
    with peak_server("linnet.bench.arena") as peak:
        jobs = [{"model": "vanilla_lra", "tokens": tokens, "batch": 1} for tokens in (2048, 4096, 2048)]
        first, longer, again = map(peak, jobs)
    assert again == pytest.approx(first, rel=0.03)
    assert longer / first == pytest.approx(2, rel=0.15)
