"""One color per system in every figure of the project, whatever else is drawn beside it; dashes and markers help too.

A variant of a system has its color and another dash. Names that are not listed, such as those of runs, take the first
looks that are free, in the colors of Okabe and Ito.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

VALIDATION = ", validation"  # ends the name of a line that is drawn in the color of the line without it, dashed
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # for names that are not listed
FAINT = "#c4c4c4"  # lines behind the others
GUIDE = "#777777"  # lines that are no measurements
MARKERS = (  # of plotly, of matplotlib
    *(("circle", "o"), ("square", "s"), ("diamond", "D"), ("triangle-up", "^"), ("cross", "P"), ("x", "X")),
    *(("triangle-down", "v"), ("star", "*"), ("pentagon", "p"), ("triangle-left", "<"), ("hexagon", "h")),
    ("triangle-right", ">"),
)
DASHES = (("solid", "-"), ("dash", "--"), ("dot", ":"), ("dashdot", "-."), ("longdashdot", (0, (3, 1, 1, 1, 1, 1))))
# Families of systems, by names in lower case. The dashes differ within a family, the markers between neighbors; those
# that share a panel also differ in color to readers who do not see red or green.
SYSTEMS: tuple[Mapping[str, str], ...] = (
    {"softmax": "#000000"},
    {"t2": "#0072b2", "t1": "#814c00"},
    {"norm": "#6300a4"},
    {"diag": "#009e73"},
    {"lln": "#d55e00"},
    {"lln_diag": "#065352", "hedgehog": "#1a00f5"},
    {"elu": "#979ee2", "performer": "#710ff5", "cosformer": "#ef2264"},
    {"nystromformer": "#c99c23", "skyformer": "#aa4fb2", "kernelized": "#751f62"},
    {"linformer": "#056e00", "reformer": "#0faac8", "informer": "#af1a65"},
    {"bigbird": "#5e6bf5", "long_short": "#87811e"},
    {"flash": "#ef77d7", "flash_quad": "#30bd27"},
    {"flash-linear-attention": "#db00f5", "linear-attention-transformer": "#645878", "batched chunks": "#8b0205"},
)
VARIANTS = {  # in the color of the system, with dashes in this order
    "softmax": ("softmax with lrpe", "softmax in the t2 frame"),
    "norm": ("norm without positions",),
}
ALIASES = {  # the same system under another name
    "vanilla": "softmax",
    "vanilla with lrpe": "softmax with lrpe",
    "vanilla in the t2 frame": "softmax in the t2 frame",
    "torch sdpa": "softmax",
    "torch sdpa, cache in place": "softmax with lrpe",  # never in one figure
    "transnormer_t1": "t1",
    "transnormer_t2": "t2",
    "norm only": "norm",
    "normattention": "norm",
    "diag only": "diag",
    "1+elu": "elu",
    "1-elu": "elu",  # in the name of a run
    "flash-quad": "flash_quad",
    "transformer-ls": "long_short",
    "linear_attention": "norm",
    "exp_attention": "lln",
    "block_attention": "diag",
}


SYSTEM_COLORS = {color for family in SYSTEMS for color in family.values()}


class Look(NamedTuple):
    """How a line is drawn: its color, and its places in DASHES and MARKERS."""

    color: str
    dash: int
    marker: int


LOOKS = {name: Look(color, dash, 0) for family in SYSTEMS for dash, (name, color) in enumerate(family.items())}
LOOKS = {name: look._replace(marker=i % len(MARKERS)) for i, (name, look) in enumerate(LOOKS.items())}
LOOKS |= {
    name: LOOKS[system]._replace(dash=dash)
    for system, variants in VARIANTS.items()
    for dash, name in enumerate(variants, LOOKS[system].dash + 1)
}


def figure_colors(names: Sequence[str]) -> list[Look]:
    """The looks of the lines of a figure: a system's own, else its color with a free dash, else a look that is free."""
    known = [_own_look(name) for name in names]
    owned = {look[:2] for look in known if look is not None}
    free = [Look(color, dash, 0) for dash in range(len(DASHES)) for color in COLORS]
    if owned:  # beside systems, first the colors that are nobody's
        free = [look for look in free if look.color not in dict(owned)] or free
        free.sort(key=lambda look: (look.dash, look.color in SYSTEM_COLORS))
    found, used, unknown = list[Look](), set[tuple[str, int]](), 0
    for i, (name, look) in enumerate(zip(names, known, strict=True)):
        if name.endswith(VALIDATION) and name.removesuffix(VALIDATION) in names[:i]:
            other = found[names.index(name.removesuffix(VALIDATION))]
            look = other._replace(dash=(other.dash + 1) % len(DASHES))
        elif look is not None and look[:2] in used:
            dashes = [look._replace(dash=dash) for dash in range(len(DASHES))]
            look = next((other for other in dashes if other[:2] not in owned | used), None)
        if look is None:
            look = free[unknown % len(free)]._replace(marker=i % len(MARKERS))
            unknown += 1
        used.add(look[:2])
        found.append(look)
    return found


def _own_look(name: str) -> Look | None:
    """The look of a system by its name in a table, a benchmark, the registry or a run; None for other names."""
    name = re.sub(r", (cpu|torch|triton|reference)$", "", name.lower())
    name = re.sub(r"^(?:[a-z_]+-)?(.+)-seed\d+$", r"\1", name)
    if name in LOOKS or name in ALIASES:
        return LOOKS[ALIASES.get(name, name)]
    variant = re.fullmatch(r"(.+)(?:, | with | at ).+", name)  # such as "lln, masked" or "T2 at 0.003"
    base = _own_look(variant[1]) if variant else None
    return base and base._replace(dash=(base.dash + 1) % len(DASHES))
