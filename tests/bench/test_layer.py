"""The measurement of a layer: real numbers, with memory measured in separate processes."""

import json

import pytest

from linnet.bench.layer import FORMAT, measure_layer_costs
from linnet.bench.memory import peak_memory_server
from linnet.errors import LinnetError
from linnet.storage import dump_json_file

MIB = 2**20


def test_every_mechanism_and_length_has_its_row():
    done = []
    cost = measure_layer_costs(
        ["softmax", "diag"], lengths=(16, 40), rounds=2, progress=lambda n, of: done.append((n, of))
    )
    assert cost["format"] == FORMAT
    assert [(row["tokens"], row["attention"]) for row in cost["rows"]] == [
        (16, "softmax"),
        (16, "diag"),
        (40, "softmax"),
        (40, "diag"),
    ]
    assert all(0 < row["low"] <= row["seconds"] <= row["high"] for row in cost["rows"])
    assert done == [(n, 12) for n in range(1, 13)]
    assert json.loads(dump_json_file(cost, "cost")) == cost


def test_a_peak_is_that_of_the_job_alone_and_a_failure_is_one_line(capfd):
    long, short, wrong = ({"attention": "softmax", "tokens": N} for N in (4096, 512, -1))
    with peak_memory_server("linnet.bench.layer") as peak:
        first, second, third = (peak(job) for job in (short, long, short))
        with pytest.raises(LinnetError, match=r"negative dimension"):
            peak(wrong)
        assert peak(short) > 0  # the server outlives a job that failed
    least = 5 * 4096 * 512 * 4  # bytes of x's gradient, y, q, k and v
    assert second > least
    assert abs(first - third) < 2 * MIB  # what the long one took is gone
    assert second > 5 * first
    assert capfd.readouterr() == ("", "")


def test_a_job_that_needs_too_much_memory_or_time_is_refused():
    refused = pytest.raises(LinnetError, match="more than 1 seconds")
    with peak_memory_server("linnet.bench.layer", longest=1) as peak, refused:
        peak({"attention": "softmax", "tokens": 65536})
    with peak_memory_server("linnet.bench.layer", most=64 * MIB) as peak:
        assert peak({"attention": "softmax", "tokens": 512}) < 64 * MIB
        with pytest.raises(LinnetError, match=r"needs more than 0.0625 GiB"):
            peak({"attention": "softmax", "tokens": 16384})
