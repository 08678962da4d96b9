"""`bench parallel`: real ranks are measured, an interrupted measurement goes on, and bytes do not grow with tokens."""

import json

import pytest

from linnet.bench.parallel import measure_parallel_bench
from linnet.bench.parallel_page import bench_parallel_page
from linnet.cli.app import run_app


@pytest.mark.slow
def test_the_command_measures_one_and_two_ranks(tmp_path, capfd):
    command = ["bench", "parallel", "--quick", "--only", "lln", "--out", str(tmp_path)]
    assert run_app([*command, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    rows = {(row["tokens"], row["ranks"]): row for row in found["rows"]}
    assert set(rows) == {(64, 1), (64, 2), (128, 1), (128, 2)}
    state, moments = 4 * 64 * 66 * 4, 4 * 6 * 8  # four heads: S, z and m in float32, six moments in float64
    for (_, ranks), row in rows.items():
        assert row["forward"] == (ranks - 1) * 2 * (state + moments)
        assert row["backward"] == (ranks - 1) * 2 * state
        assert row["calls"] == 7 and row["seconds"] > 0 and row["cpu"] > 0
        assert row["memory"] is None or row["memory"] > 0
    assert json.loads((tmp_path / "parallel.json").read_text()) == found
    assert (tmp_path / "parallel.md").read_text() == bench_parallel_page(found)
    again = {key: value for key, value in found.items() if key != "command"}
    assert measure_parallel_bench(["lln"], (64, 128), 1, before=found) == again  # nothing is measured again


def test_bad_arguments_are_one_line(capfd):
    for given, line in (
        (["ops", "parallel"], "parallel runs alone"),
        (["parallel", "--threads", "2"], "parallel runs alone"),
        (["parallel", "--only", "softmax"], "no model has 'softmax' in its name"),
    ):
        assert run_app(["bench", *given]) == 2
        err = capfd.readouterr().err
        assert line in err and err.count("\n") == 1
