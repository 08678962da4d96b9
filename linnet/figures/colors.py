"""One color, dash and marker per system in every figure of the project, whatever else is drawn beside it.

Most colors are those of Okabe and Ito, which color-blind readers can tell apart; dashes and markers differ as well.
Names that are not listed, such as those of runs, take the first looks that are free.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

VALIDATION = ", validation"  # ends the name of a line that is drawn in the color of the line without it, dashed
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # for names that are not listed
MARKERS = (  # of plotly, of matplotlib
    *(("circle", "o"), ("square", "s"), ("diamond", "D"), ("triangle-up", "^"), ("cross", "P"), ("x", "X")),
    *(("triangle-down", "v"), ("star", "*"), ("pentagon", "p"), ("triangle-left", "<"), ("hexagon", "h")),
    ("triangle-right", ">"),
)
DASHES = (("solid", "-"), ("dash", "--"), ("dot", ":"))
BLACK, BLUE, SKY, GREEN, RED = "#000000", "#0072b2", "#56b4e9", "#009e73", "#d55e00"
ORANGE, PINK, BROWN, GRAY, OLIVE, PURPLE, TEAL = (
    *("#e69f00", "#cc79a7", "#8c5a2b", "#7f7f7f", "#999933"),
    *("#6a3d9a", "#44aa99"),
)
# Names in lower case, each with its color; those of one color differ in dash, in this order.
SYSTEMS = {
    BLACK: ("softmax", "softmax with lrpe", "softmax in the t2 frame"),
    BLUE: ("t2", "t1", "t2, pretrained"),
    SKY: ("norm",),
    GREEN: ("diag",),
    RED: ("lln", "lln, released constants"),
    ORANGE: ("lln_diag", "hedgehog"),
    PINK: ("elu", "performer", "cosformer"),
    BROWN: ("nystromformer", "skyformer", "kernelized"),
    GRAY: ("linformer", "reformer", "informer"),
    OLIVE: ("bigbird", "long_short", "batched chunks"),
    PURPLE: ("flash", "flash_quad"),
    TEAL: ("flash-linear-attention", "linear-attention-transformer"),
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
    "diag only": "diag",
    "1+elu": "elu",
    "1-elu": "elu",  # in the name of a run
    "flash-quad": "flash_quad",
    "transformer-ls": "long_short",
    "linear_attention": "norm",
    "exp_attention": "lln",
    "block_attention": "diag",
}


class Look(NamedTuple):
    """How a line is drawn: its color, and its places in DASHES and MARKERS."""

    color: str
    dash: int
    marker: int


LOOKS = {
    name: Look(color, dash, (3 * i + dash) % len(MARKERS))
    for i, (color, names) in enumerate(SYSTEMS.items())
    for dash, name in enumerate(names)
}


def figure_colors(names: Sequence[str]) -> list[Look]:
    """The looks of the lines of a figure: a system's own if nobody has it yet, else one that is free."""
    known = [_own_look(name) for name in names]
    taken = {look[:2] for look in known if look is not None}
    free = [Look(color, dash, 0) for dash in range(len(DASHES)) for color in COLORS]
    free = [look for look in free if look[:2] not in taken] or free
    found, used, unknown = list[Look](), set[tuple[str, int]](), 0
    for i, (name, look) in enumerate(zip(names, known, strict=True)):
        if name.endswith(VALIDATION) and name.removesuffix(VALIDATION) in names[:i]:
            other = found[names.index(name.removesuffix(VALIDATION))]
            look = other._replace(dash=(other.dash + 1) % len(DASHES))
        elif look is None or look[:2] in used:
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
    base = _own_look(name.rpartition(", ")[0]) if ", " in name else None  # a variant, such as "lln, masked"
    return base and base._replace(dash=(base.dash + 1) % len(DASHES))
