"""Unfinished runs: the table and the figures show the records of each run, with the metric of its task."""

import shutil
from pathlib import Path

import pytest

from linnet.errors import InputError
from linnet.figures.figure import read_figure_metadata
from linnet.report.runs import SavedRun
from linnet.studies.unfinished import render_unfinished, unfinished_figures, unfinished_table


def run(name, key, values):
    valid = [{"split": "valid", "step": step, "loss": 1.0, key: value} for step, value in values.items()]
    train = [{"split": "train", "step": step} for step in values]
    timings = [{"step": step, "split": split, "seconds": 90.0} for step in values for split in ("train", "valid")]
    return SavedRun(name, {"train": {"steps": 5000}}, {}, train, valid, timings)


RUNS = [
    run("T2", "accuracy", {500: 0.25, 1000: 0.375, 1500: 0.375}),
    run("T2-pretrained/pretrain", "perplexity", {500: 14.64, 1000: 11.9, 1500: 12.0}),
]


def test_the_best_is_the_first_of_the_highest_accuracies_or_the_lowest_perplexity() -> None:
    assert unfinished_table(RUNS).to_markdown().splitlines()[2:] == [
        "| T2 | 1,500 | 5,000 | 37.50 % | 1,000 | 9 |",
        "| T2-pretrained/pretrain | 1,500 | 5,000 | perplexity 11.90 | 1,000 | 9 |",
    ]


def test_each_measure_has_panels_with_its_own_runs() -> None:
    shown = []
    for figure in unfinished_figures(RUNS, "note"):
        (series,) = figure.series
        assert list(series.x) == [500, 1000, 1500]
        shown.append((figure.y_label, series.name, list(series.y)))
    assert shown == [
        ("validation accuracy, %", "T2", [25, 37.5, 37.5]),
        ("validation loss, nats", "T2", [1.0, 1.0, 1.0]),
        ("validation perplexity", "T2-pretrained/pretrain", [14.64, 11.9, 12.0]),
    ]


def test_their_picture_is_never_written_over_that_of_a_study(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[2] / "docs/results/transnormer-table4-cpu.png", tmp_path / "runs.png")
    with pytest.raises(InputError, match=r"runs.png is a figure of transnormer-table4, not of unfinished runs"):
        render_unfinished(RUNS, tmp_path / "runs", "title")
    assert [path.name for path in tmp_path.iterdir()] == ["runs.png"]
    (tmp_path / "runs.png").unlink()
    for _ in range(2):  # their own they may write again
        assert render_unfinished(RUNS, tmp_path / "runs", "title") == (tmp_path / "runs.md", tmp_path / "runs.png")
    assert read_figure_metadata(tmp_path / "runs.png")["linnet-study"] == "unfinished runs"
    assert render_unfinished([], tmp_path / "none", "title") == ()
