"""Studies of perplexity: the curve of a run, whatever its recipe logs."""

from pathlib import Path

from linnet.registry import STUDY

STUDIED = STUDY["transnormer-table4"]()
FOLDER = Path(__file__).parents[2] / "docs/results/transnormer-table4-cpu"


def test_an_evaluation_is_at_the_tokens_read_until_its_step():
    for series in [series for figure in STUDIED.figures(STUDIED.read(FOLDER), "") for series in figure.series]:
        assert list(series.x) == [step * 16 * 256 / 1e6 for step in (100, 200, 300, 400, 500)]


def test_an_evaluation_between_two_logged_steps_is_drawn():
    record = STUDIED.read(FOLDER)[0]
    evaluations = [entry for entry in record["curve"] if entry["split"] == "valid"]
    (figure,) = STUDIED.figures([{**record, "curve": evaluations}], "")
    assert len(figure.series[0].x) == len(evaluations) == 5
