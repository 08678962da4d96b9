"""Table 6: the table shows the records, and refuses records that cannot be combined."""

import pytest

from linnet.errors import LinnetError
from linnet.figures.figure import save_figures
from linnet.registry import STUDY
from linnet.studies.transnormer_table6 import table6_accuracies

STUDIED = STUDY["transnormer-table6"]()


def table(records):
    return STUDIED.to_markdown(records)


def test_accuracy_by_task_with_the_mean_and_range_over_seeds(scores):
    head, _, first, second, *_ = table(scores).splitlines()
    assert head == "| system | text | listops |"
    assert first == "| T2 | 55.00 (50.00 to 60.00, 2 seeds) | 40.00 |"
    assert second == "| vanilla | 30.00 | 20.00 |"


def test_an_average_is_shown_only_for_the_whole_benchmark(scores, record):
    rest = [record("T2", f"lra/{task}", 0.5) for task in ("retrieval", "pathfinder", "image")]
    lines = table([*scores, *rest]).splitlines()
    assert lines[0] == "| system | text | listops | retrieval | pathfinder | image | average |"
    assert lines[2].endswith("| 40.00 | 50.00 | 50.00 | 50.00 | 49.00 |")
    assert lines[3] == "| vanilla | 30.00 | 20.00 | - | - | - | - |"
    rest[0] = record("T2", "lra/retrieval_small", 0.5)  # which is no part of it
    assert table([*scores, *rest]).splitlines()[0].endswith("| image |")
    best = table([*scores[:-1], record("T1", "lra/text", 0.9)]).splitlines()
    assert [line.split(" | ")[0] for line in best[2:5]] == ["| T1", "| T2", "| vanilla"]  # by what all have
    assert table(scores[:2]).splitlines()[0] == "| system | text |"


def _note(records):
    (line,) = [line for line in table(records).splitlines() if line.startswith("Test accuracy")]
    return line


def test_the_note_states_the_budget_and_the_accuracy_of_guessing(scores):
    note = _note(scores)
    size = "text 100 steps of 4 sequences of up to 9 tokens, learning rate 0.001"
    assert f"{size}, tested on 2,500, standard error 1.0;" in note
    assert "Loading" not in note
    scores[0] |= {"loading": 0.005}
    assert "Loading data took at most 0.5% of an update" in _note(scores)


def test_systems_are_in_order_of_the_tasks_that_all_of_them_have(record):
    one, other = record("T2", "lra/listops", 0.4), record("vanilla", "lra/listops", 0.3)
    more = record("vanilla", "lra/text", 0.9)
    assert list(table6_accuracies([one, other, more])) == ["T2", "vanilla"]
    assert list(table6_accuracies([one, more])) == ["vanilla", "T2"]  # they have none in common


def test_unequal_budgets_on_a_task_are_refused(scores, record):
    with pytest.raises(LinnetError, match="the runs on lra/text had different budgets"):
        table([*scores, record("T1", "lra/text", 0.1, steps=101)])
    with pytest.raises(LinnetError, match="the runs on lra/text had different budgets"):
        table([*scores, record("T1", "lra/text", 0.1, accumulate=2)])
    before = record("T2, pretrained", "lra/text", 0.1, steps=60, pretrain_steps=40)
    before["config"]["pretrain"] = True
    assert "T2, pretrained" in table([*scores, before])


def test_a_run_that_is_there_twice_is_not_two_seeds(scores, record):
    with pytest.raises(LinnetError, match="the runs on lra/text have T2 with seed 1 2 times"):
        table([*scores, record("T2", "lra/text", 0.6, seed=1)])


def test_unequal_data_of_a_task_are_refused(scores):
    for number, found in enumerate(scores):
        found["environment"] = {**found["environment"], "data": {"test": "a" if number < 4 else "b"}}
    assert "| T2 |" in table(scores[:4])
    with pytest.raises(LinnetError, match="lra/listops had different data: T2 with seed 0, and vanilla with seed 0"):
        table(scores)


def test_the_curve_of_a_pretrained_run_begins_after_its_pretraining(scores, record):
    before = record("T2, pretrained", "lra/text", 0.1, steps=60, pretrain_steps=40)
    before["config"]["pretrain"] = True
    text, listops = STUDIED.figures([*scores, before], "")
    assert {series.name: list(series.x) for series in text.series} == {
        "T2": [50, 100], "vanilla": [50, 100], "T2, pretrained": [90, 140]
    }  # fmt: skip
    assert [line.name for line in listops.series] == [line.name for line in text.series]  # so they have one color
    assert [line.name for line in listops.series if not line.x] == ["T2, pretrained"]


def test_every_system_runs_on_every_task_at_the_papers_size():
    tasks: dict[str, list[str]] = {}
    for study_run in STUDIED.study_runs("paper"):
        assert study_run.config.train.steps == 50_000
        assert study_run.config.model["preset"].endswith("_lra")
        tasks.setdefault(study_run.config.task, []).append(study_run.row.name)
    assert set(tasks) == {f"lra/{name}" for name in ("listops", "text", "retrieval", "pathfinder", "image")}
    assert all({"T1", "T2", "vanilla"} <= set(names) == set(tasks["lra/text"]) for names in tasks.values())
    assert {"listops-lln_diag-seed0", "text-vanilla-seed0", "retrieval_small-1-elu-seed0"} <= set(STUDIED.runs("cpu"))


def test_pretraining_is_planned_too():
    planned = {run.run: run for run in STUDIED.dry_run("cpu", only=["listops-T2"])}
    assert planned["listops-T2-pretrained-seed0"].steps == planned["listops-T2-seed0"].steps == 5000
    (pair,) = STUDIED.dry_run("paper", only=["retrieval-T2"])
    assert pair.tokens == 50_000 * 16 * 2 * 4000  # two documents per sample


def test_the_figures_can_be_drawn(scores, tmp_path):
    figures = STUDIED.figures(scores, "note")
    assert [figure.title for figure in figures] == ["text", "listops"]
    save_figures(figures, tmp_path / "a.png")
    assert "![validation accuracy against steps](x.png)" in STUDIED.rendered(scores, "x.png")
