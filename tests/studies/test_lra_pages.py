"""Results of the Long Range Arena: the tables say what the records hold, and the figures can be drawn."""

import copy

import pytest

from linnet.errors import LinnetError
from linnet.figures.figure import save_figures, to_plotly
from linnet.studies.lra_pages import accuracies, accuracy_curves, accuracy_table, circles, speed_curves, speed_table
from linnet.studies.results import rendered, to_markdown, view

TRAIN = {"steps": 100, "batch": 4, "accumulate": 1, "pretrain_steps": 0, "lr": 1e-3}


def record(row, task, accuracy, seed=0, **train):
    return {
        "row": row,
        "seed": seed,
        "command": "linnet reproduce x",
        "config": {"task": task, "pretrain": False, "train": {**TRAIN, **train}, "data": {"context": 9}},
        "environment": {"linnet": "1", "torch": "2"},
        "curve": [
            {"split": "train", "step": 50},
            *({"split": "valid", "step": step, "accuracy": accuracy * step / 100} for step in (50, 100)),
        ],
        "valid": {"accuracy": accuracy},
        "test": {"accuracy": accuracy, "loss": 1.0, "samples": 2500},
    }


@pytest.fixture
def scores():
    return [
        record("T2", "lra/text", 0.5),
        record("T2", "lra/text", 0.6, seed=1),
        record("T2", "lra/listops", 0.4),
        record("vanilla", "lra/text", 0.3),
        record("vanilla", "lra/listops", 0.2),
    ]


@pytest.fixture
def speeds():
    environment = {"linnet": "1", "torch": "2", "machine": "m", "cores": 2, "threads": 1}

    def at(tokens, train):
        rows = [
            {"row": "vanilla", "training": 1.0, "inference": 2.0, "memory": 4_000_000},
            {"row": "T2", "training": train, "inference": 2 * train, "memory": 1_000_000},
        ]
        about = {"batch": 4, "others": 0.25, "environment": environment, "command": "linnet reproduce x"}
        return {"tokens": tokens, "rows": rows, **about}

    return [at(2048, 5.0), at(1024, 3.0)]


def test_accuracy_by_task_with_the_mean_and_range_over_seeds(scores):
    head, _, first, second, *_ = accuracy_table(scores).splitlines()
    assert head == "| system | text | listops |"
    assert first == "| T2 | 55.00 (50.00 to 60.00, 2 seeds) | 40.00 |"
    assert second == "| vanilla | 30.00 | 20.00 |"


def test_there_is_an_average_of_the_whole_benchmark_only(scores):
    rest = [record("T2", f"lra/{task}", 0.5) for task in ("retrieval", "pathfinder", "image")]
    lines = accuracy_table([*scores, *rest]).splitlines()
    assert lines[0] == "| system | text | listops | retrieval | pathfinder | image | average |"
    assert lines[2].endswith("| 40.00 | 50.00 | 50.00 | 50.00 | 49.00 |")
    assert lines[3] == "| vanilla | 30.00 | 20.00 | - | - | - | - |"
    rest[0] = record("T2", "lra/retrieval_small", 0.5)  # which is no part of it
    assert accuracy_table([*scores, *rest]).splitlines()[0].endswith("| image |")
    best = accuracy_table([*scores[:-1], record("T1", "lra/text", 0.9)]).splitlines()
    assert [line.split(" | ")[0] for line in best[2:5]] == ["| T1", "| T2", "| vanilla"]  # by what all have
    assert accuracy_table(scores[:2]).splitlines()[0] == "| system | text |"


def test_the_budget_and_what_an_accuracy_is_worth(scores):
    note = accuracy_table(scores).splitlines()[-1]
    assert "text 100 steps of 4 sequences of up to 9 tokens, rate 0.001, tested on 2,500, standard error 1.0;" in note
    assert "Loading" not in note
    scores[0] |= {"loading": 0.005}
    assert "Loading took at most 0.5% of an update" in accuracy_table(scores).splitlines()[-1]


def test_systems_are_in_order_of_the_tasks_that_all_of_them_have():
    one, other = record("T2", "lra/listops", 0.4), record("vanilla", "lra/listops", 0.3)
    more = record("vanilla", "lra/text", 0.9)
    assert list(accuracies([one, other, more])) == ["T2", "vanilla"]
    assert list(accuracies([one, more])) == ["vanilla", "T2"]  # they have none in common


def test_unequal_budgets_on_a_task_are_refused(scores):
    with pytest.raises(LinnetError, match="the runs on lra/text had different budgets"):
        accuracy_table([*scores, record("T1", "lra/text", 0.1, steps=101)])
    with pytest.raises(LinnetError, match="the runs on lra/text had different budgets"):
        accuracy_table([*scores, record("T1", "lra/text", 0.1, accumulate=2)])
    before = record("T2, pretrained", "lra/text", 0.1, steps=60, pretrain_steps=40)
    before["config"]["pretrain"] = True
    assert "T2, pretrained" in accuracy_table([*scores, before])


def test_a_run_that_is_there_twice_is_not_two_seeds(scores):
    with pytest.raises(LinnetError, match="the runs on lra/text have T2 with seed 1 2 times"):
        accuracy_table([*scores, record("T2", "lra/text", 0.6, seed=1)])


def test_unequal_data_of_a_task_are_refused(scores):
    for number, found in enumerate(scores):
        found["environment"] = {**found["environment"], "data": {"test": "a" if number < 4 else "b"}}
    assert "| T2 |" in accuracy_table(scores[:4])
    with pytest.raises(LinnetError, match="lra/listops had different data: T2 with seed 0, and vanilla with seed 0"):
        accuracy_table(scores)


def test_the_curve_of_a_pretrained_run_begins_after_its_pretraining(scores):
    before = record("T2, pretrained", "lra/text", 0.1, steps=60, pretrain_steps=40)
    before["config"]["pretrain"] = True
    text, listops = accuracy_curves([*scores, before], "")
    assert {series.name: list(series.x) for series in text.series} == {
        "T2": [50, 100], "vanilla": [50, 100], "T2, pretrained": [90, 140]
    }  # fmt: skip
    assert [line.name for line in listops.series] == [line.name for line in text.series]  # so they have one color
    assert [line.name for line in listops.series if not line.x] == ["T2, pretrained"]


def test_speed_beside_vanilla(speeds):
    table = speed_table(speeds).splitlines()
    assert table[0] == "| inference, steps a second | 1,024 | 2,048 |"
    assert "| T2 | 6 (3.00) | 10 (5.00) |" in table
    assert "| T2 | 3 (3.00) | 5 (5.00) |" in table
    assert "| vanilla | 4 | 4 |" in table  # megabytes
    assert "up to 0.2 cores busy" in table[-1]


def test_what_the_system_does_not_tell_of_other_programs_is_not_told(speeds):
    assert "up to 0.2 cores" in speed_table([speeds[0] | {"others": None}, speeds[1]])
    assert "Other programs" not in speed_table([record | {"others": None} for record in speeds])


@pytest.mark.parametrize("change", [{"batch": 8}, {"environment": {"threads": 2}}])
def test_lengths_that_were_measured_differently_are_not_one_table(speeds, change):
    speeds[0] |= {key: {**speeds[0][key], **new} if isinstance(new, dict) else new for key, new in change.items()}
    with pytest.raises(LinnetError, match="1,024 and 2,048 tokens were measured on different machines"):
        speed_table(speeds)


def test_a_system_that_was_not_measured_at_every_length_has_gaps(speeds):
    speeds[1]["rows"].append({"row": "T1", "training": 2.0, "inference": 3.0, "memory": 1_000_000})
    table = speed_table(speeds).splitlines()
    assert "| T1 | 3 (1.50) | - |" in table
    assert "| T1 | 1 | - |" in table
    (line,) = [series for series in speed_curves(speeds, "")[0].series if series.name == "T1"]
    assert (list(line.x), list(line.y)) == ([1024], [3.0])


def test_circles_compare_systems_on_the_tasks_that_all_of_them_have(scores, speeds):
    figure = circles(scores[:-1], speeds, 2048, "")  # vanilla has no listops yet
    assert {series.name: list(series.y) for series in figure.series} == {"T2": [pytest.approx(55)], "vanilla": [30.0]}
    assert figure.y_label == "test accuracy, % (text)"
    with pytest.raises(LinnetError, match="no systems with a task in common"):
        circles([scores[2], scores[3]], speeds, 2048, "")


def test_records_are_known_by_what_they_hold(scores, speeds):
    assert to_markdown(scores) == accuracy_table(scores)
    assert to_markdown(speeds) == speed_table(speeds)
    assert "![validation accuracy against steps](x.png)" in rendered(scores, "x.png")
    assert [figure.title for figure in view(scores).figures(scores, "")] == ["text", "listops"]
    assert [figure.title for figure in view(speeds).figures(speeds, "")] == ["Inference", "Training"]


def test_circles_hold_score_speed_and_memory(scores, speeds):
    figure = circles(scores, speeds, 2048, "note")
    found = {series.name: (series.x, series.y, series.sizes) for series in figure.series}
    assert found["T2"] == ([5.0], [47.5], [1_000_000])
    assert found["vanilla"] == ([1.0], [25.0], [4_000_000])
    small, large = (trace["marker"]["size"][0] for trace in sorted(
        to_plotly(figure)["data"], key=lambda trace: trace["marker"]["size"][0]
    ))  # fmt: skip
    assert large / small == pytest.approx(2)  # areas are as 4 to 1
    with pytest.raises(LinnetError, match="no row of 4,096 tokens"):
        circles(scores, speeds, 4096, "")


def test_the_figures_can_be_drawn(scores, speeds, tmp_path):
    for number, group in enumerate((accuracy_curves(scores, "a"), speed_curves(speeds, "b"))):
        save_figures(group, tmp_path / f"{number}.png")
    save_figures([circles(copy.deepcopy(scores), speeds, 1024, "c")], tmp_path / "circles.png")
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in tmp_path.glob("*.png"))
