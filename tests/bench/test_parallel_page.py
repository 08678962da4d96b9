"""The page of `bench parallel`: rendered from the committed numbers, with what was measured apart from what was not."""

import json
from pathlib import Path

from linnet.bench import parallel_costs as costs
from linnet.bench.parallel_page import bench_parallel_forecast, bench_parallel_page, bench_parallel_tables

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks"


def test_the_committed_page_is_that_of_the_committed_numbers():
    found = json.loads((FOLDER / "parallel.json").read_text())
    text = (FOLDER / "parallel.md").read_text()
    assert text == bench_parallel_page(found)
    measured, modeled = text.split("## Modeled")
    assert all(table.to_markdown() in measured for table in bench_parallel_tables(found))
    assert bench_parallel_forecast(found).to_markdown() in modeled.split("Nothing below was measured.")[1]
    assert {row["ranks"] for row in found["rows"]} == {1, 2} and found["load"]


def test_the_forecast_covers_a_billion_tokens_and_1024_ranks():
    rows = bench_parallel_forecast(json.loads((FOLDER / "parallel.json").read_text())).rows
    assert len(rows) == len(costs.RANKS) * len(costs.TOKENS)
    assert {row[0] for row in rows} >= {"1,000,000", "1,000,000,000"} and "1,024" in {row[1] for row in rows}
