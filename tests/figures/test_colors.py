"""A system has one look in every figure, under all of its names; other names take looks that are free."""

import pytest

from linnet.figures.colors import ALIASES, COLORS, LOOKS, figure_colors
from linnet.registry import ATTENTION
from linnet.studies.systems import FAMILIES, PARTS, SYSTEMS, split_systems


def test_every_system_of_the_studies_has_a_look_of_its_own():
    names = [*SYSTEMS, *PARTS]
    for name in names:
        assert ALIASES.get(name.lower(), name.lower()) in LOOKS, name
    looks = figure_colors(names)
    assert len({look[:2] for look in looks}) == len(names)
    assert [figure_colors([name])[0] for name in names] == looks  # whatever is drawn beside it


def test_every_mechanism_has_the_look_of_its_system():
    assert set(ATTENTION.names()) <= set(LOOKS)
    for system, preset in SYSTEMS.items():
        assert figure_colors([system]) == figure_colors([preset]), system


def test_backends_of_an_op_have_its_look_and_two_of_them_differ():
    one, two = figure_colors(["linear_attention, cpu", "linear_attention, torch"])
    assert one == figure_colors(["norm"])[0] and one != two


def test_other_names_take_free_looks_in_order():
    assert [look.color for look in figure_colors(["run a", "run b"])] == list(COLORS[:2])
    t2, other = figure_colors(["T2", "run a"])
    assert t2.color != other.color


@pytest.mark.parametrize(
    "names,panels", [(["T2", "vanilla"], 1), (["T2", *"abcdefgh"], 1), (list(SYSTEMS), 4), ([*SYSTEMS, "new"], 5)]
)
def test_many_systems_are_split_by_family_and_none_is_lost(names, panels):
    found = split_systems(names)
    assert len(found) == panels
    assert sorted(name for family in found.values() for name in family) == sorted(names)
    assert {name for family in FAMILIES.values() for name in family} >= {*SYSTEMS, *PARTS}


def test_variants_and_runs_have_the_color_of_their_system():
    masked, lln = figure_colors(["lln, masked", "lln"])
    assert masked.color == lln.color and masked.dash != lln.dash
    assert figure_colors(["listops-vanilla-seed0", "1-elu-seed2"]) == figure_colors(["softmax", "elu"])
