"""The engine: rows in order, reasons instead of missing numbers, and interrupted runs that continue."""

import json
import time
from collections.abc import Callable

import pytest

from linnet.bench.measure import Bench, Effort, Group, measure_bench
from linnet.bench.timing import time_known_calls
from linnet.errors import InputError, UnsupportedError
from linnet.storage import dump_json_file

EFFORT = Effort(rounds=2, least=0.0, limit=0.2, yardstick=16)


def job(case: str, tokens: int, batch: int = 1, **more: object) -> dict:
    return {"table": "t", "case": case, "form": "f", "pass": "p", "batch": batch, "tokens": tokens, **more}


def bench(prepare: Callable, *groups: list, settings: dict | None = None) -> Bench:
    return Bench("ops", "linnet.bench.ops", prepare, [Group(group) for group in groups], [], settings or {})


def sleep_linear(one: dict) -> Callable:
    return lambda: time.sleep(one["tokens"] * 1e-4)


def test_every_job_has_its_row_with_the_limits_of_its_turn():
    told = []
    plan = bench(sleep_linear, [job("a", 10), job("b", 10)], [job("a", 20), job("b", 20)])
    result = measure_bench(plan, EFFORT, progress=lambda done, total: told.append((done, total)))
    assert result["complete"]
    assert [(row["case"], row["tokens"]) for row in result["rows"]] == [("a", 10), ("b", 10), ("a", 20), ("b", 20)]
    assert all(0.001 <= row["low"] <= row["seconds"] <= row["high"] for row in result["rows"])
    assert all(row["gemm"] > 0 and row["copy"] > 0 for row in result["rows"])
    assert told == [(0, 4), (2, 4), (4, 4)]
    assert json.loads(dump_json_file(result, "result")) == result


def test_facts_of_a_call_go_into_its_row():
    class Call:
        facts = {"state": 7}  # noqa: RUF012

        def __call__(self) -> None:
            pass

    (row,) = measure_bench(bench(lambda one: Call(), [job("a", 1)]), EFFORT)["rows"]
    assert row["state"] == 7


def test_a_failure_is_explained_and_the_others_continue():
    def prepare(one):
        if one["case"] == "refused":
            raise UnsupportedError("it cannot")
        if one["case"] == "broken":
            return lambda: {}["key"]
        return lambda: None

    cases = ("refused", "broken", "good")
    plan = bench(prepare, [job(case, 1) for case in cases], [job(case, 2) for case in cases])
    rows = measure_bench(plan, EFFORT)["rows"]
    assert [row.get("reason") for row in rows] == ["it cannot", "breaks: KeyError: 'key'", None] * 2
    assert "seconds" in rows[2] and "seconds" not in rows[0]


def test_a_slow_case_gets_only_one_second_chance():
    calls = []
    plan = bench(lambda one: lambda: (calls.append(1), time.sleep(0.6)), [job("a", 1)])
    (row,) = measure_bench(plan, EFFORT)["rows"]
    assert row["reason"] == "takes more than 0.2 seconds"
    assert len(calls) == 2


def test_cases_that_would_take_too_long_are_skipped():
    tried = []

    def prepare(one):
        tried.append((one["case"], one["tokens"]))
        return lambda: time.sleep(one["tokens"] ** 2 * 1e-6)  # quadratic: 0.01, 0.04, 0.16, 0.64 seconds

    sizes = (100, 200, 400, 800)
    cases = (("a", "ours"), ("b", "peer"))
    plan = bench(prepare, *([job(case, N, group=group) for case, group in cases] for N in sizes), [job("a", 100, 2)])
    rows = measure_bench(plan, EFFORT)["rows"]
    assert tried == [("a", 100), ("b", 100), ("a", 200), ("b", 200), ("a", 400), ("a", 100)]
    assert {row["reason"] for row in rows if "reason" in row} == {
        "would take more than 0.2 seconds",
        "would take more than 0.1 seconds",
    }


def test_an_interrupted_run_keeps_its_results_and_continues(tmp_path):
    partial, tried = tmp_path / "ops.partial.json", []

    def prepare(one):
        tried.append(one["tokens"])
        if one["tokens"] == 2 and tried.count(2) == 1:
            raise KeyboardInterrupt
        return lambda: None

    plan = bench(prepare, [job("a", 1)], [job("a", 2)], [job("a", 3)])
    stopped = measure_bench(plan, EFFORT, partial)
    assert not stopped["complete"]
    assert [row["tokens"] for row in stopped["rows"]] == [1]
    assert json.loads(partial.read_text()) == stopped
    done = measure_bench(plan, EFFORT, partial)
    assert done["complete"]
    assert [row["tokens"] for row in done["rows"]] == [1, 2, 3]
    assert done["rows"][0] == stopped["rows"][0]
    assert tried == [1, 2, 2, 3]


def test_rows_of_other_settings_are_not_taken_over(tmp_path):
    partial = tmp_path / "ops.partial.json"
    measure_bench(bench(sleep_linear, [job("a", 1)], settings={"heads": 2}), EFFORT, partial)
    with pytest.raises(InputError, match=r"ops\.partial\.json was started with other settings"):
        measure_bench(bench(sleep_linear, [job("a", 1)], settings={"heads": 4}), EFFORT, partial)


def test_turns_come_in_another_order_each_round_and_slow_calls_take_fewer():
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "abcdefgh"}
    time_known_calls(calls, dict.fromkeys(calls, 1.0) | {"a": 9.0}, rounds=5, least=0.0, slow=5.0)
    rounds = [order[start : start + 8] for start in (0, 8, 16)]
    assert all(sorted(turn) == list("abcdefgh") for turn in rounds)
    assert rounds[0] != rounds[1]
    assert order.count("a") == 3
    assert order.count("b") == 5
