"""The cost model of ranks: lines are found again, a known machine gives known seconds, and the totals add up."""

import pytest

from linnet.bench import parallel_costs as costs


def test_a_line_is_found_again():
    assert costs.fit_parallel_line([(x, 2 + 3 * x) for x in (1.0, 5.0, 9.0)]) == pytest.approx((2, 3))
    assert costs.fit_parallel_line([(1.0, 1.0), (2.0, 3.0)]) == pytest.approx((0, (1 + 2 / 3) / (1 + 4 / 9)))
    assert costs.fit_parallel_line([(1.0, 3.0), (2.0, 1.0)])[1] == 0  # more bytes do not take less time
    assert costs.fit_parallel_line([(4.0, 8.0)]) == pytest.approx((8, 0))


def measurement():
    """A machine with 1 ms per message and 1 MB per second, and steps of 10 ms and 1 ms per token."""
    messages = [{"bytes": size, "seconds": 1e-3 + size / 1e6} for size in (100, 1000, 10_000)]
    rows = [
        {"case": "norm", "tokens": n, "ranks": ranks, "cpu": 0.01 + 0.001 * n, "memory": 1000 + 64 * n}
        | {"forward": 2000 * (ranks - 1), "gradients": 4000 * (ranks - 1)}
        for n in (10, 20, 40)
        for ranks in (1, 2)
    ]
    return {"messages": messages, "rows": rows, "settings": {"model": {"layers": 2, "width": 8}}}


def test_a_known_machine_gives_known_seconds():
    hardware = costs.fit_parallel_hardware(measurement())
    assert (hardware.hop, hardware.rate) == pytest.approx((1e-3, 1e6))
    load = costs.fit_parallel_workload(measurement(), "norm")
    assert load[:6] == pytest.approx((1e-3, 0.01, 2, 1000, 4000, 64), rel=1e-6, abs=1e-9)
    assert costs.predict_parallel_step(hardware, load, 100, 1) == pytest.approx((0.11, 0))
    work, sent = costs.predict_parallel_step(hardware, load, 100, 3)
    assert work == pytest.approx(0.11)
    assert sent == pytest.approx(2 * 2 * 2 * (1e-3 + 1e-3) + 2 * 2 * (1e-3 + 4000 / 3e6))
    assert costs.predict_parallel_memory(load, 100, 3) == pytest.approx(64 * 100 + 3 * 1000)


def test_messages_do_not_depend_on_tokens_and_work_does():
    hardware, load = costs.stated_parallel_hardware(), costs.stated_parallel_workload(64.0)
    few, many = (costs.predict_parallel_step(hardware, load, tokens, 1024) for tokens in (10**3, 10**6))
    assert few[1] == many[1] > 0
    assert many[0] == pytest.approx(1000 * few[0])
    assert load.per_token * costs.PEAK * costs.SHARE > 6 * costs.count_parallel_parameters()
    states = 2 * load.layers * 1023 * (costs.HOP + load.state / costs.RATE)
    weights = 3 * 1023 * (load.layers * costs.HOP + 2 * costs.count_parallel_parameters() / 1024 / costs.RATE)
    assert few[1] == pytest.approx(states + weights)


def test_checkpointing_keeps_the_inputs_of_layers():
    load = costs.stated_parallel_workload(64.0)
    all_of_it, checkpointed = (costs.predict_parallel_memory(load, 10**6, 8, kept) for kept in (0, 2 * costs.WIDTH))
    layer = load.token_memory / load.layers
    assert all_of_it - checkpointed == pytest.approx(
        10**6 * (load.layers - 1) * layer - 10**6 * load.layers * 2 * costs.WIDTH
    )
