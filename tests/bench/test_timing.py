"""Timing: turns, medians of the quieter half, and detection of other programs."""

import math
import subprocess
import sys
import time

import pytest

from linnet.bench import timing
from linnet.bench.timing import Timing, time_calls


def test_calls_take_turns_and_are_repeated_to_fill_a_sample():
    order, ticks = [], []
    calls = {"a": lambda: order.append("a"), "b": lambda: (order.append("b"), time.sleep(0.01))}
    found = time_calls(calls, rounds=3, least=0.02, progress=lambda: ticks.append(1))
    turns = "".join(order).lstrip("a").lstrip("b")
    assert len(ticks) == 6
    assert [turn for turn in turns.split("b") if turn]  # a comes back after b has had its turn
    assert order.count("a") > order.count("b") >= 2 + 3
    assert 0.01 <= found["b"].low <= found["b"].seconds <= found["b"].high
    assert found["a"].seconds < found["b"].seconds


def test_the_clock_of_the_processor_stands_while_a_call_sleeps():
    sleep = {"sleep": lambda: time.sleep(0.02)}
    assert time_calls(sleep, rounds=2, least=0, processor=True)["sleep"].seconds < 0.01
    assert time_calls(sleep, rounds=2, least=0)["sleep"].seconds >= 0.02


def test_the_quieter_half_counts():
    samples = [(0.0, 1.0), (1.5, 9.0), (0.1, 2.0), (0.9, 8.0), (0.2, 4.0)]
    assert timing._quieter_half(samples) == Timing(seconds=2.0, low=1.0, high=4.0, others=0.1)


def test_without_knowledge_of_others_all_samples_count():
    assert timing._quieter_half([(math.nan, 1.0), (math.nan, 3.0), (0.0, 2.0)]) == Timing(2.0, 1.0, 3.0, None)


@pytest.mark.skipif(math.isnan(timing._clocks()[2]), reason="this system does not tell what other programs do")
def test_a_busy_neighbor_is_noticed_and_own_work_is_not():
    def work():
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass

    loop = "import time\nend = time.process_time() + 30\nwhile time.process_time() < end: pass"
    neighbor = subprocess.Popen([sys.executable, "-c", loop])
    try:
        time.sleep(0.2)
        with_neighbor = time_calls({"work": work}, rounds=2)["work"]
    finally:
        neighbor.kill()
        neighbor.wait()
    assert with_neighbor.others > 0.3


def test_nothing_is_reported_on_an_unknown_machine(monkeypatch):
    monkeypatch.setattr(timing, "BUSY", (99,))
    assert time_calls({"work": lambda: time.sleep(0.001)}, rounds=2, least=0)["work"].others is None
