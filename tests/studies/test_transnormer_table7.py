"""Table 7: steps per second beside vanilla's, by length."""

import pytest

from linnet.errors import LinnetError
from linnet.figures.figure import save_figures
from linnet.registry import STUDY

STUDIED = STUDY["transnormer-table7"]()


def table(records):
    return STUDIED.to_markdown(records)


def test_speed_beside_vanilla(speeds):
    lines = table(speeds).splitlines()
    assert lines[0] == "| inference, steps per second | 1,024 | 2,048 |"
    assert "| T2 | 6 (3.00) | 10 (5.00) |" in lines
    assert "| T2 | 3 (3.00) | 5 (5.00) |" in lines
    assert "| vanilla | 4 | 4 |" in lines  # megabytes
    assert "up to 0.2 cores busy" in lines[-1]


def test_unknown_load_of_other_programs_is_not_reported(speeds):
    assert "up to 0.2 cores" in table([speeds[0] | {"others": None}, speeds[1]])
    assert "Other programs" not in table([record | {"others": None} for record in speeds])


@pytest.mark.parametrize("change", [{"batch": 8}, {"environment": {"threads": 2}}])
def test_lengths_that_were_measured_differently_are_not_one_table(speeds, change):
    speeds[0] |= {key: {**speeds[0][key], **new} if isinstance(new, dict) else new for key, new in change.items()}
    with pytest.raises(LinnetError, match="1,024 and 2,048 tokens were measured on different machines"):
        table(speeds)


def test_a_system_that_was_not_measured_at_every_length_has_gaps(speeds):
    speeds[1]["rows"].append({"row": "T1", "training": 2.0, "inference": 3.0, "memory": 1_000_000})
    lines = table(speeds).splitlines()
    assert "| T1 | 3 (1.50) | - |" in lines
    assert "| T1 | 1 | - |" in lines
    (line,) = [series for series in STUDIED.figures(speeds, "")[0].series if series.name == "T1"]
    assert (list(line.x), list(line.y)) == ([1024], [3.0])


def test_the_figures_can_be_drawn(speeds, tmp_path):
    figures = STUDIED.figures(speeds, "note")
    assert [figure.title for figure in figures] == ["Inference", "Training"]
    save_figures(figures, tmp_path / "a.png")
