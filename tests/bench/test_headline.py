"""The page of benchmarks opens with five rows, from the committed numbers."""

from pathlib import Path

from linnet.bench.headline import bench_headline_table
from linnet.bench.page import read_bench_page

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_committed_numbers_give_five_rows_and_their_ratios():
    results = read_bench_page(DOCS / "benchmarks")
    rows = bench_headline_table(results).rows
    assert [row[-1] for row in rows] == ["4.43x", "1.11x", "5.24x", "1,039x", "2,048x"]
    assert rows[0][1:3] == ["1.51 s", "342 ms (norm)"]
    page = (DOCS / "benchmarks.md").read_text().split("## ")[0]
    assert all(row[1] in page for row in rows), "they come before the first heading"


def test_what_was_not_measured_has_no_row():
    results = read_bench_page(DOCS / "benchmarks")
    assert len(bench_headline_table({"decode": results["decode"]}).rows) == 2
    assert not bench_headline_table({}).rows
