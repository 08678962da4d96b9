"""A system has one look in every figure, under all of its names; other names take looks that are free."""

import itertools

import pytest
import torch

from linnet.figures import colors
from linnet.figures.colors import ALIASES, COLORS, DASHES, LOOKS, MARKERS, SYSTEM_COLORS, figure_colors
from linnet.registry import ATTENTION
from linnet.studies.systems import FAMILIES, PARTS, SYSTEMS, split_systems

# From light of the three primaries to what the cones of the eye get, and on to lightness, red-green and blue-yellow.
CONES = ((0.41222, 0.53633, 0.05145), (0.21190, 0.68070, 0.10740), (0.08830, 0.28172, 0.62998))
SENSES = ((0.21045, 0.79362, -0.00407), (1.97800, -2.42859, 0.45059), (0.02590, 0.78277, -0.80868))
BLIND = {  # the light that readers without the sense of green or red see (Machado and others, 2009)
    "green": ((0.36732, 0.86065, -0.22797), (0.28009, 0.67250, 0.04741), (-0.01182, 0.04294, 0.96888)),
    "red": ((0.15229, 1.05258, -0.20487), (0.11450, 0.78628, 0.09922), (-0.00388, -0.04812, 1.05200)),
}


def light(color: str) -> torch.Tensor:
    """The light of a color such as #0072b2."""
    parts = torch.tensor([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return torch.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def difference(one: str, two: str, blind: str | None = None) -> float:
    """How different two colors look, in OKLab: black and white are 1 apart."""
    seen = []
    for color in (one, two):
        primaries = light(color) if blind is None else (torch.tensor(BLIND[blind]) @ light(color)).clamp(0, 1)
        seen.append(torch.tensor(SENSES) @ (torch.tensor(CONES) @ primaries) ** (1 / 3))
    return float((seen[0] - seen[1]).norm())


def test_every_system_has_a_color_of_its_own():
    """Any two are told apart without dashes, and those of one panel by readers who do not see red or green as well."""
    systems = [name for family in colors.SYSTEMS for name in family]
    assert set(ATTENTION.names()) <= set(systems) and {"t1", "t2"} <= set(systems)
    for one, two in itertools.combinations(systems, 2):
        assert difference(LOOKS[one].color, LOOKS[two].color) > 0.11, (one, two)
    for name in systems:  # as thin lines on white paper
        contrast = 1.05 / (light(LOOKS[name].color) @ torch.tensor([0.2126, 0.7152, 0.0722]) + 0.05)
        assert contrast > 2.45, name


@pytest.mark.parametrize("family", FAMILIES)
def test_systems_of_one_panel_differ_for_every_reader(family: str):
    looks = [look for look in figure_colors(FAMILIES[family]) if look.dash == 0 or look.color != LOOKS["softmax"].color]
    assert len({look.marker for look in looks}) == len(looks) <= len(MARKERS)
    for one, two in itertools.combinations(looks, 2):
        assert difference(one.color, two.color) > 0.15
        assert min(difference(one.color, two.color, blind) for blind in BLIND) > 0.08


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
    others = {look.color for look in figure_colors(["T2", "run a", "run b", "run c"])[1:]}
    assert len(others) == 3 and not others & set(SYSTEM_COLORS)  # beside systems, no color of another system


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
    five = figure_colors(["lln", *(f"lln, {change}" for change in ("masked", "causal", "early", "late"))])
    assert {look.color for look in five} == {lln.color} and len({look.dash for look in five}) == len(DASHES)
    rates = figure_colors([f"{system} at {rate}" for system in ("T2", "1+elu") for rate in (0.003, 0.006, 0.012)])
    assert len(set(rates)) == 6 and len({look.color for look in rates}) == 2
    assert figure_colors(["NormAttention with LRPE"])[0].color == figure_colors(["norm"])[0].color
    assert figure_colors(["listops-vanilla-seed0", "1-elu-seed2"]) == figure_colors(["softmax", "elu"])
