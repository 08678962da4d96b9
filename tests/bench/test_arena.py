"""Speed and memory of the arena's models: a small real measurement."""

from linnet.bench import arena


def test_a_measurement(monkeypatch):
    monkeypatch.setattr(arena, "BATCH", 1)
    systems = {"T2": "transnormer_t2_lra_small", "vanilla": "vanilla_lra_small"}
    found = arena.measure_arena(systems, 128, rounds=1)
    assert [row["row"] for row in found["rows"]] == ["T2", "vanilla"]
    for row in found["rows"]:
        assert row["inference"] > 0
        assert row["training"] > 0
        assert row["memory"] >= 0
    assert found["tokens"] == 128
